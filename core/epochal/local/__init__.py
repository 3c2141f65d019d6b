"""Local mode: the whole of Epochal on one machine, as processes.

Apart from the services, which it starts by their commands and never imports.
"""

from epochal.local.mode import LocalMode
from epochal.local.settings import DEFAULT_DATA, LocalSettings

__all__ = ["DEFAULT_DATA", "LocalMode", "LocalSettings"]
