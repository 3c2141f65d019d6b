"""The examples in the protocol's docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import epochal.protocol

MODULES = [
    module.name for module in pkgutil.walk_packages(epochal.protocol.__path__, "epochal.protocol.") if not module.ispkg
]


@pytest.mark.pure("compiled code has no docstrings")
@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0
