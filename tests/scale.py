"""How long the long tests look: `make test-long LONG=4` does four times as many rounds, seeds and schedules."""

import os

LONG = int(os.environ.get("LONG") or 1)
