"""How long the long tests look: `make test-long LONG=4` runs four times as many chaos rounds and simulated seeds."""

import os

LONG = int(os.environ.get("LONG") or 1)
