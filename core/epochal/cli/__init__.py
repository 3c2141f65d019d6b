"""The command `epochal`.

It only reads arguments, calls the public API and prints.
"""

import atexit
import gc

gc.set_threshold(20_000, 50, 100)  # as in publishers: what imports make is no garbage, and a twelfth of a short command
atexit.register(gc.freeze)  # the process ends: a last search for garbage would be a seventh of a short command

from epochal.cli.main import main  # noqa: E402

__all__ = ["main"]
