"""Shared by all processes that use ZeroMQ: sockets, the memory kept for payloads, and an orderly end of tasks."""
