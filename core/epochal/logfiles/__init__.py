"""A segment's log as files: one writer, any number of readers, and nothing lost that was acknowledged.

The format and the decisions of recovery are in `epochal.protocol.log`; this package does the disk work. Publishers own
logs through it, and the command `epochal log` reads them.
"""

from epochal.logfiles.log import LogOpening, LogSettings, SegmentLog
from epochal.logfiles.log_reader import LogBatch
from epochal.logfiles.recovery import Recovery

__all__ = ["LogBatch", "LogOpening", "LogSettings", "Recovery", "SegmentLog"]
