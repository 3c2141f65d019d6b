"""A catalog whose wall clock stands at 0, so that it counts: publishers' incarnations are 1, 2, 3, and tests name them.

`COMMAND` starts it as a process, with the arguments of `epochal-catalog`.
"""

import sys
from functools import partial

import epochal_catalog.__main__ as program
from epochal_catalog import server

COMMAND = (sys.executable, __file__)

if __name__ == "__main__":
    server.Server = partial(server.Server, wall=lambda: 0.0)  # type: ignore[misc,assignment]  # all that is different
    program.main()
