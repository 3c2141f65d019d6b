"""Makes the C library keep the memory of freed payloads for the next ones, instead of giving it back at once.

This is a setting of glibc for the whole process. Publishers, writers and subscribers allocate and free blocks of tens
of kilobytes to megabytes thousands of times a second. If each block is given back to the system, the next one is
faulted in page by page. That costs a subscriber of 512 kB batches a third of its processor time (docs/performance.md).
"""

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
_LARGEST_ON_HEAP = 32 * 2**20
"""The largest value that glibc allows; larger blocks are mapped one by one."""
_STEP = 16 * 2**20

PUBLISHER_KEEPS = 256 * 2**20
CLIENT_KEEPS = 64 * 2**20
"""Less than a publisher keeps, because the process is the application's: four of the largest payloads."""


def keep_freed_memory(kept: int) -> bool:
    """Keep up to `kept` free bytes at the end of the heap; returns whether the C library took the settings.

    Nothing is changed if the environment has glibc settings of its own, or if the C library is not glibc.
    """
    if any(name in os.environ for name in _OWN_SETTINGS):
        return False
    try:
        tell = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    wanted = {_MMAP_THRESHOLD: _LARGEST_ON_HEAP, _TRIM_THRESHOLD: kept, _TOP_PAD: _STEP}
    taken = [tell(option, value) for option, value in wanted.items()]
    return all(taken)
