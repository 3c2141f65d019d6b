"""A catalog at https: certificates are read for it, and only for it."""

import http.server
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE

from epochal.local.child import console_script

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, which makes a certificate")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of 127.0.0.1 that is its own authority, and its key in the same file."""
    file = tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", file, "-out", f"{file}.crt"],
        check=True, capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    with file.open("a") as both:
        both.write(Path(f"{file}.crt").read_text())
    return file


class _Catalog(http.server.BaseHTTPRequestHandler):
    """Lists nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "13")
        self.end_headers()
        self.wfile.write(b'{"items": []}')

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port(certificate: Path) -> Iterator[int]:
    """Where a catalog listens that has this certificate."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Catalog) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def _list(url: str, trusted: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SSL_CERT_FILE": str(trusted), "SSL_CERT_DIR": os.devnull}
    command = [console_script("epochal"), "get", "streams", "--catalog", url, "--timeout", "0"]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)


@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
def test_a_catalog_with_a_trusted_certificate_is_called(port: int, certificate: Path, scheme: str) -> None:
    result = _list(f"{scheme}://127.0.0.1:{port}", certificate)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert "no streams" in result.stderr


def test_a_catalog_whose_certificate_no_one_vouches_for_is_refused(port: int, tmp_path: Path) -> None:
    result = _list(f"https://127.0.0.1:{port}", tmp_path / "none")
    assert (result.returncode, result.stdout) == (4, "")


def test_a_catalog_at_http_needs_no_certificates(catalog: str, certificate: Path) -> None:
    code = f"""
import gc, os, ssl, sys
from epochal.cli import main
sys.argv = ["epochal", "get", "streams", "--catalog", {catalog!r}]
try:
    main()
finally:
    contexts = [each for each in gc.get_objects() if isinstance(each, ssl.SSLContext)]
    print(sum(each.cert_store_stats()["x509"] for each in contexts), os.environ["SSL_CERT_FILE"], file=sys.stderr)
    print(*{{"SSL_CERT_DIR"}} & os.environ.keys(), file=sys.stderr)
"""
    environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_DIR"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False,
        env={**environment, "SSL_CERT_FILE": str(certificate)},
    )  # fmt: skip
    assert result.stderr.splitlines()[-2:] == [f"0 {certificate}", ""]
