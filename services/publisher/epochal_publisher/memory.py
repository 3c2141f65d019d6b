"""How the C library handles the memory of payloads: kept for the next one instead of given back at once.

Apart from the service because it is a remark to glibc, not to a stream. A publisher takes and frees blocks of tens of
kilobytes to megabytes thousands of times a second; given back each time, each is faulted in anew page by page, which
took a third of the system time that a publisher of 32 kB batches used (docs/performance.md).
"""

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT = 256 * 2**20
"""Free bytes at the end of the heap above which they are given back."""
_LARGEST_ON_HEAP = 32 * 2**20
"""The most that glibc allows; larger blocks are mapped one by one."""
_STEP = 16 * 2**20


def keep_freed_memory() -> bool:
    """Tell glibc; returns whether it took all of it (no other C library knows these)."""
    try:
        tell = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    wanted = {_MMAP_THRESHOLD: _LARGEST_ON_HEAP, _TRIM_THRESHOLD: _KEPT, _TOP_PAD: _STEP}
    taken = [tell(option, value) for option, value in wanted.items()]
    return all(taken)
