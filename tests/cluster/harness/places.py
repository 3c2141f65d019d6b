"""Where the cluster suite keeps what it builds, runs and writes down: all of it under one directory of the tree.

Apart, so that whoever looks for a file or wants to remove everything has one place to read.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "tests" / "cluster" / "node"
TOOLS = ROOT / ".cache" / "tools"
"""helm, kubectl and, where the machine has none, Go."""
CACHE = ROOT / ".cache" / "cluster"
BIN = CACHE / "bin"
"""The built components; kept by `make cluster-down`, for they take minutes."""
LOGS = CACHE / "logs"
