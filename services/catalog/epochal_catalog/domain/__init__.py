"""What the catalog knows, and the rules by which it changes. No I/O."""
