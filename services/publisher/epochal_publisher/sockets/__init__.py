"""The ZeroMQ sockets of a publisher: what writers and subscribers send, and what is pushed to them."""
