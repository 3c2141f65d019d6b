"""Writers: what a program calls to publish, and a connection to the publisher of each segment."""
