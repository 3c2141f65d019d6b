"""Whether a writer, its stream and one append may have source numbers; the program learns it at the call (E50 sources).

The numbers themselves are kept by the machine (`epochal.protocol.writer.source_numbers`).
"""

from epochal.client.catalog.directory import Directory
from epochal.client.writer.session import Session
from epochal.errors import UsageError


class SourceNumberChecks:
    """The checks of one writer; before its stream is looked up, nothing is known against source numbers."""

    __slots__ = ("_session", "_several_segments", "_stream", "_why_not")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stream = ""
        self._several_segments = False
        self._why_not = ""
        """Why nothing that this writer appends can have a source number; empty if it can."""

    def stream_is_known(self, directory: Directory) -> None:
        """The stream has been looked up in the catalog."""
        self._stream = directory.qualified
        self._several_segments = len(directory.segments) > 1
        self._why_not = self._reason_against(directory.declared.history.policy)

    def _reason_against(self, policy: str) -> str:
        if not self._session.takes_source_numbers:
            return "source numbers belong to a writer that can come back with a capability of its own: give a writer_id"
        if policy != "batch":
            return (
                f"{self._stream} acknowledges what is not on disk yet (durability {policy}): a publisher"
                " that starts again would not know all source numbers; declare history.storage, with durability batch"
            )
        return ""

    def check_writer(self) -> None:
        """Raise `UsageError` where this writer cannot have source numbers, or why its session is over."""
        if self._why_not:
            raise UsageError(self._why_not)
        self._session.raise_error()
        if self._session.was_lost:
            raise UsageError(
                "a publisher had given this writer up, and some of what it sent may be lost: leave it, open a new one,"
                " and go on after its resume_from"
            )

    def check_append(self, key: bytes | None) -> None:
        """Raise `UsageError` also for an append whose repeat could go to another segment."""
        self.check_writer()
        if key is None and self._several_segments:
            raise UsageError(
                f"{self._stream} has several segments: with source= give a key, which leads a repeat to the same one"
            )
