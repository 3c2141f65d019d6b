"""A segment's log as files: one writer, any number of readers, and nothing lost that was acknowledged.

Apart from `epochal.protocol`, which knows the bytes and decides: here is what touches a disk. Apart from the publisher
because `epochal log` reads the same files.
"""

from epochal.logfiles.log import LogOpening, LogSettings, SegmentLog
from epochal.logfiles.reading import LogBatch
from epochal.logfiles.recovering import Recovery

__all__ = ["LogBatch", "LogOpening", "LogSettings", "Recovery", "SegmentLog"]
