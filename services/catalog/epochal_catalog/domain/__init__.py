"""What the catalog knows and the rules by which it changes; no I/O."""
