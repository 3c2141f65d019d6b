"""Records as payloads and back, in each encoding that a stream can declare."""
