"""The processes and raw sockets of the publisher's tests, of which these are the worse-mannered relatives.

Loaded by path: directories of tests are no packages, and fixtures of one are not seen in another.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def _load(path: Path, name: str) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


_publisher = _load(Path(__file__).parents[1] / "publisher" / "conftest.py", "hostile_publisher_fixtures")

logs, catalog, declare = _publisher.logs, _publisher.catalog, _publisher.declare
start, shared_publisher, shared = _publisher.start, _publisher.shared_publisher, _publisher.shared
wires, wait_until = _publisher.wires, _publisher.wait_until
