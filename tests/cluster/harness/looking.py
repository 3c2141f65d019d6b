"""How the node's own small controllers live: they look at everything twice a second and keep nothing in mind.

Apart from what they do. Watches would tell them sooner and cost more lines; a test cluster is small.
"""

import json
import ssl
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.cluster.harness.settings import Layout

_INTERVAL = 0.5


class Api:
    """The API server, as far as this needs it."""

    def __init__(self, layout: Layout) -> None:
        """Talk to the node's API server as the user `controllers`."""
        self._url = layout.url
        self._trust = ssl.create_default_context(cafile=str(layout.directory / "keys" / "ca.crt"))
        self._trust.load_cert_chain(*layout.key("controllers"))

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the document that answers it; HTTPError and other OSErrors are raised."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, content, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, context=self._trust, timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
            return document


def repeat(look: Callable[[Api], None], layout: Layout) -> None:
    """Look and act for as long as the process lives."""
    api = Api(layout)
    while True:
        try:
            look(api)
        except OSError as error:  # the API server is away
            print(f"tried again soon: {error}", flush=True)
        time.sleep(_INTERVAL)
