"""A process that serves the GCS emulator on loopback, over HTTP and, for TensorFlow, behind an HTTPS proxy.

    python tests/serve_gcs.py FOLDER [SECONDS]

FOLDER then holds `ports.json`, `certificate.pem`, `credentials.json`, and `requests.txt`, a line for each request: its
method, path and range. TensorFlow knows no emulator: with `https_proxy` it asks this process for a tunnel to
www.googleapis.com, of which the certificate is for the test to trust. Each request takes SECONDS longer than it must.
"""

import json
import ssl
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage

_HOSTS = ("www.googleapis.com", "storage.googleapis.com", "oauth2.googleapis.com")
_NEVER = "2099-01-01T00:00:00Z"


class Handler(RequestHandler):
    """The emulator's, which tells of each request, serves one at a time and takes `CONNECT` as a proxy does."""

    lock = threading.Lock()  # the emulator's storage is for one thread
    protocol_version = "HTTP/1.1"
    timeout = 60
    delay = 0.0  # seconds

    def __init__(self, log: Path, context: ssl.SSLContext, *arguments: object) -> None:
        self.log, self.context = log, context
        super().__init__(*arguments)

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        if parsed and self.command != "CONNECT":
            with self.lock, self.log.open("a") as log:
                log.write(f"{self.command} {self.path} {self.headers.get('Range', '-')}\n")
        return bool(parsed)

    def do_CONNECT(self) -> None:  # noqa: N802 the name that http.server looks for
        self.send_response(200, "Connection established")
        self.end_headers()
        self.connection = self.context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self.close_connection = False


def _locked(method: str) -> None:
    original = getattr(RequestHandler, method)

    def serve(self: Handler) -> None:
        time.sleep(self.delay)
        with self.lock:
            original(self)

    setattr(Handler, method, serve)


for _method in ("do_GET", "do_POST", "do_PUT", "do_DELETE", "do_PATCH"):
    _locked(_method)


def _certificate(folder: Path) -> ssl.SSLContext:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _HOSTS[0])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in _HOSTS]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


def main(folder: Path) -> None:
    """Serve until the process is ended."""
    user = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r", "token": "t"}
    (folder / "credentials.json").write_text(json.dumps(user | {"expiry": _NEVER}))
    storage, context = Storage(use_memory_fs=True), _certificate(folder)
    create_bucket("bucket", storage)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_make, folder / "requests.txt", context, storage))
    server.daemon_threads = True
    (folder / "requests.txt").touch()
    (folder / "ports.json.tmp").write_text(json.dumps({"port": server.server_port}))
    (folder / "ports.json.tmp").rename(folder / "ports.json")
    server.serve_forever()


def _make(log: Path, context: ssl.SSLContext, storage: Storage, *arguments: object) -> Handler:
    return Handler(log, context, storage, *arguments)


if __name__ == "__main__":
    Handler.delay = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    main(Path(sys.argv[1]))
