"""The command `epochal`.

It only reads arguments, calls the public API and prints.
"""

import atexit
import gc

gc.set_threshold(20_000, 50, 100)  # imports make no garbage, and collecting it would take a twelfth of a short command
atexit.register(gc.freeze)  # a last collection at the end would take a seventh of a short command

from epochal.cli.main import main  # noqa: E402

__all__ = ["main"]
