"""What publishers and clients tell the C library about memory."""

import ctypes
import os

import pytest

from epochal.transport.memory import CLIENT_KEEPS, keep_freed_memory


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)


def test_glibc_takes_it_and_others_are_left_alone() -> None:
    has_mallopt = hasattr(ctypes.CDLL(None), "mallopt")
    assert keep_freed_memory(CLIENT_KEEPS) is has_mallopt


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_user_stand(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "131072")
    assert not keep_freed_memory(CLIENT_KEEPS)
