"""Which catalog is called, and what to do when it does not answer.

Separate from the catalog's calls because a command needs it before it knows whether it calls anything, and they read
answers by pydantic, which takes longer to import than a list takes to print.
"""

import os
from urllib.parse import urlsplit

from epochal.errors import ConfigError

DEFAULT_CATALOG = "http://127.0.0.1:8700"
CLUSTER_CATALOG = "http://epochal-catalog.epochal.svc:8700"
"""The catalog of a release `epochal` in the namespace `epochal`, for programs in a pod."""
ADVICE = "start one with `epochal up`, or name another with --catalog or EPOCHAL_CATALOG"
"""What to do when no catalog answers."""


def catalog_url(given: str | None = None) -> str:
    """The catalog to call: `given`, else EPOCHAL_CATALOG, else in a pod the cluster's, else the local one.

    Raises `ConfigError` for what is no HTTP URL.
    """
    url = given or os.environ.get("EPOCHAL_CATALOG") or (CLUSTER_CATALOG if in_pod() else DEFAULT_CATALOG)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"'{url}' cannot be a catalog; write http://HOST:PORT in --catalog or EPOCHAL_CATALOG")
    return url.rstrip("/")


def in_pod() -> bool:
    """Whether this runs in a pod: Kubernetes puts its API server's address into each environment."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def catalog_advice(url: str) -> str:
    """What to do about a catalog that cannot be reached at `url`, from how it came to be called."""
    if url == CLUSTER_CATALOG and in_pod():
        return (
            "that is where a pod looks when EPOCHAL_CATALOG is not set: is there a release `epochal` in the namespace "
            "`epochal`? else set EPOCHAL_CATALOG to http://SERVICE.NAMESPACE.svc:8700 of the catalog"
        )
    if (urlsplit(url).hostname or "").endswith(".svc"):
        return "is that the Service of a catalog, http://SERVICE.NAMESPACE.svc:8700, and is this in its cluster?"
    return ADVICE
