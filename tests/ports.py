"""Ports for what tests start; nothing else on the machine gets one, before the server starts or after it has ended.

A port that a test has only looked up can be given to another process at once. Then the test connects to that one: to a
publisher of another test, where it expects a catalog that is away.
"""

import random
import socket

FIRST, END = 20_000, 32_000
"""Below those that Linux gives to clients and to servers that bind to port 0."""

_held: list[socket.socket] = []


def free_port(host: str = "127.0.0.1") -> int:
    """A port at which nothing listens: connections are refused until a server binds to it, with SO_REUSEADDR.

    It is reserved until this process ends, by a socket that is bound and never listens. That one binds without
    SO_REUSEADDR, which fails where any other socket has the port, and sets it then: so one server can bind beside it.
    """
    while True:
        holder = socket.socket()
        try:
            holder.bind((host, random.randrange(FIRST, END)))
        except OSError:
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held.append(holder)
        port: int = holder.getsockname()[1]
        return port
