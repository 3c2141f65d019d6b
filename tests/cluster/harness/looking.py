"""The loop of the node's own small controllers: they read everything twice a second and keep no state.

Watches would be faster but need more code, and a test cluster is small.
"""

import json
import ssl
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPSConnection
from typing import Any

from tests.cluster.harness.settings import API_PORT, Layout
from tests.patience import PATIENCE

_INTERVAL = 0.5


class ApiError(OSError):
    """The API server refused a request; `code` is its HTTP status."""

    def __init__(self, code: int, said: bytes) -> None:
        """`said`: the body of the answer."""
        super().__init__(f"HTTP {code}: {said.decode(errors='replace')}")
        self.code = code


class Api:
    """The API server, as far as these controllers need it, over one connection that stays open."""

    def __init__(self, layout: Layout) -> None:
        """Talk to the node's API server as the user `controllers`."""
        trust = ssl.create_default_context(cafile=str(layout.directory / "keys" / "ca.crt"))
        trust.load_cert_chain(*layout.key("controllers"))
        self._connection = HTTPSConnection(layout.address, API_PORT, context=trust, timeout=PATIENCE)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the document that answers it.

        Raises:
            ApiError: It was refused.
            OSError: The server is away.
        """
        content = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, content, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            said = answer.read()
        except (HTTPException, OSError) as error:
            self._connection.close()  # the next request opens another
            raise ConnectionError(error) from error
        if answer.status >= 400:
            raise ApiError(answer.status, said)
        document: dict[str, Any] = json.loads(said)
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
