"""Local mode: the whole of Epochal on one machine, as processes.

It starts the services by their commands and never imports them.
"""

from epochal.local.mode import LocalMode
from epochal.local.service import DEFAULT_DATA, LocalSettings

__all__ = ["DEFAULT_DATA", "LocalMode", "LocalSettings"]
