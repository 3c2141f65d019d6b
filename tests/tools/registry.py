"""A registry on loopback, for what a release is installed from: a directory of files, and a registry of OCI artifacts.

It does what pip and helm need and no more: files and listings by GET, and of the OCI distribution specification the
upload and download of blobs and manifests.
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(
        self, blobs: dict[str, bytes], manifests: dict[str, tuple[str, bytes]], *given: Any, **more: Any
    ) -> None:
        self._blobs, self._manifests = blobs, manifests
        super().__init__(*given, **more)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base's
        pass

    # ---- OCI: https://github.com/opencontainers/distribution-spec ----

    def do_GET(self) -> None:
        if not self._answered():
            super().do_GET()

    def do_HEAD(self) -> None:
        if not self._answered():
            super().do_HEAD()

    def _answered(self) -> bool:
        path = urlsplit(self.path).path
        if not path.startswith("/v2/"):
            return False
        if path == "/v2/":
            self._answer(200)
        elif "/blobs/" in path and (blob := self._blobs.get(path.rpartition("/")[2])) is not None:
            self._answer(200, blob, "application/octet-stream")
        elif (found := self._manifests.get(path)) is not None:
            kind, manifest = found
            self._answer(200, manifest, kind, {"Docker-Content-Digest": _digest(manifest)})
        else:
            self._answer(404)
        return True

    def do_POST(self) -> None:
        self._body()
        self._answer(202, headers={"Location": f"{urlsplit(self.path).path}upload", "Range": "0-0"})

    def do_PATCH(self) -> None:
        body = self._body()
        self._blobs[f"part {self.path}"] = body
        self._answer(202, headers={"Location": self.path, "Range": f"0-{len(body) - 1}"})

    def do_PUT(self) -> None:
        url, body = urlsplit(self.path), self._body()
        if "/manifests/" in url.path:
            name = url.path.rpartition("/")[0]
            for reference in (url.path, f"{name}/{_digest(body)}"):
                self._manifests[reference] = self.headers["Content-Type"], body
            self._answer(201, headers={"Docker-Content-Digest": _digest(body)})
            return
        blob = self._blobs.pop(f"part {url.path}", b"") + body
        (digest,) = parse_qs(url.query)["digest"]
        if _digest(blob) != digest:
            self._answer(400)
            return
        self._blobs[digest] = blob
        self._answer(201, headers={"Location": f"{url.path.rpartition('/uploads')[0]}/{digest}"})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(
        self,
        status: int,
        body: bytes = b"",
        kind: str = "text/plain",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Serve the files of `directory`, and an empty OCI registry; yields `127.0.0.1:PORT`."""
    handler = partial(_Handler, {}, {}, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
