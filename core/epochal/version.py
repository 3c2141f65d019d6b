"""Which version of this project runs, and whether its protocol is compiled."""

from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec


def version() -> str:
    """As people read it: `0.1.0 (compiled)`, or `0.1.0 (pure Python)`."""
    return f"{metadata.version('epochal')} ({protocol_is()})"


def protocol_is() -> str:
    """How the protocol's machines run: "compiled" or "pure Python"; loads none of them."""
    found = find_spec("epochal.protocol.frontier")
    compiled = found is not None and str(found.origin).endswith(tuple(EXTENSION_SUFFIXES))
    return "compiled" if compiled else "pure Python"
