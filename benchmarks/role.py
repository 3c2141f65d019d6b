"""Plays one role in a process of its own: `python benchmarks/role.py MODULE.FUNCTION key=value...`.

Apart from `run.py` because every part of a measured system is a process, as it would be in use.
"""

import asyncio
import importlib
import inspect
import sys


def main() -> None:
    """Call the function with the given keyword arguments, made ints where it takes ints."""
    module, _, name = sys.argv[1].partition(".")
    function = getattr(importlib.import_module(f"roles.{module}"), name)
    taken = inspect.signature(function).parameters
    ints = {key for key, parameter in taken.items() if parameter.annotation is int}
    pairs = (argument.split("=", 1) for argument in sys.argv[2:])
    outcome = function(**{key: int(value) if key in ints else value for key, value in pairs})
    if asyncio.iscoroutine(outcome):
        asyncio.run(outcome)


if __name__ == "__main__":
    main()
