"""The document of an error, as the catalog answers it."""

from epochal.catalog_api.operations import Shown


class Flaw(Shown):
    """One wrong field."""

    path: str
    reason: str
    hint: str


class ProblemDocument(Shown):
    """An error (RFC 9457); `code` is stable, `retryable` says whether the same request can succeed later."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    problems: list[Flaw] | None = None
