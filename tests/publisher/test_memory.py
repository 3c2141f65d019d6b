"""What a publisher tells the C library about memory."""

import ctypes

from epochal_publisher.memory import keep_freed_memory


def test_glibc_takes_it_and_others_are_left_alone() -> None:
    has_mallopt = hasattr(ctypes.CDLL(None), "mallopt")
    assert keep_freed_memory() is has_mallopt
