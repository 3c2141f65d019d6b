"""The command `epochal`.

It only reads arguments, calls the public API and prints.
"""

import gc

gc.set_threshold(20_000, 50, 100)  # as in publishers: what imports make is no garbage, and a twelfth of a short command

from epochal.cli.main import main  # noqa: E402

__all__ = ["main"]
