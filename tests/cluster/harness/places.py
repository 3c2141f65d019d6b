"""Where the cluster suite keeps what it builds, runs and writes down: all of it under one directory of the tree.

They are in one module, so that anyone who looks for a file or wants to remove everything finds them.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "tests" / "cluster" / "node"
TOOLS = ROOT / ".cache" / "tools"
"""helm, kubectl and, where the machine has none, Go."""
CACHE = ROOT / ".cache" / "cluster"
BIN = CACHE / "bin"
"""The built components. `make cluster-down` keeps them, because a build takes minutes."""
LOGS = CACHE / "logs"
