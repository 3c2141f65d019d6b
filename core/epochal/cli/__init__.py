"""The command `epochal`.

It only reads arguments, calls the public API and prints.
"""

from epochal.cli.main import main

__all__ = ["main"]
