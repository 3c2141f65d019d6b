"""Ports for what tests start: nothing else on the machine takes one, before what it is for has begun and after its end.

A port that was only free a moment ago belongs to whoever comes next, and then a test talks with a stranger: with the
publisher of another test where it means a catalog that is away.
"""

import random
import socket

FIRST, END = 20_000, 32_000
"""Below those that Linux gives to clients and to whoever binds to port 0."""

_held: list[socket.socket] = []


def free_port(host: str = "127.0.0.1") -> int:
    """A port at which nothing listens: who connects is refused until somebody binds to it, with SO_REUSEADDR.

    It stays reserved while this process lives. To look for it, a socket binds without SO_REUSEADDR, so that it meets
    every other; then it has it, and never listens, so that one server at a time can bind to the same port.
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
