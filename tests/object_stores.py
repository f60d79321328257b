"""Object stores on loopback, each a process of its own: what tests build to and read from at gs:// and s3:// URLs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

_HERE = Path(__file__).parent
_SECONDS_TO_START = 60


@dataclass(frozen=True)
class Gcs:
    """A running GCS emulator with one bucket, `gs://bucket`; see serve_gcs.py."""

    folder: Path
    port: int

    @property
    def client(self) -> dict[str, str]:
        """The environment in which Google's own clients, Beam's and gcsfs talk to the emulator."""
        return {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self.port}",
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.folder / "credentials.json"),  # or each process waits for 21 s
            "GOOGLE_CLOUD_PROJECT": "project",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # or gcsfs asks the emulator by gRPC, for 60 s
        }

    @property
    def tensorflow(self) -> dict[str, str]:
        """The environment in which TensorFlow does; it must be set before TensorFlow is imported."""
        return {
            "https_proxy": f"http://127.0.0.1:{self.port}",
            "CURL_CA_BUNDLE": str(self.folder / "certificate.pem"),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
        }

    def put(self, name: str, data: bytes) -> None:
        """Make an object of the bucket."""
        self._ask("POST", f"/upload/storage/v1/b/bucket/o?uploadType=media&name={quote(name, safe='')}", data)

    def get(self, name: str) -> bytes:
        """The bytes of an object of the bucket."""
        return self._ask("GET", f"/storage/v1/b/bucket/o/{quote(name, safe='')}?alt=media")

    def delete(self, name: str) -> None:
        """Delete an object of the bucket."""
        self._ask("DELETE", f"/storage/v1/b/bucket/o/{quote(name, safe='')}")

    def names(self, prefix: str = "") -> list[str]:
        """The names of the bucket's objects."""
        found = json.loads(self._ask("GET", f"/storage/v1/b/bucket/o?prefix={quote(prefix, safe='')}"))
        return sorted(item["name"] for item in found.get("items", []))

    def objects(self, prefix: str) -> dict[str, bytes]:
        """{name below the prefix: bytes}."""
        return {name[len(prefix) :]: self.get(name) for name in self.names(prefix)}

    def requests(self) -> list[str]:
        """The requests so far, in order: `METHOD PATH RANGE`, RANGE being `-` for none."""
        return (self.folder / "requests.txt").read_text().splitlines()

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/octet-stream"}
        request = Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        with build_opener(ProxyHandler({})).open(request, timeout=60) as answer:
            body: bytes = answer.read()
        return body


@contextmanager
def gcs_emulator(folder: Path, delay: float = 0.0) -> Iterator[Gcs]:
    """Serve an empty bucket, each request so many seconds late."""
    command = [sys.executable, str(_HERE / "serve_gcs.py"), str(folder), str(delay)]
    with _process(command, folder / "server.log"):
        yield Gcs(folder, json.loads(_await(folder / "ports.json"))["port"])


@dataclass(frozen=True)
class S3:
    """A running S3 server with one bucket, `s3://bucket`."""

    port: int

    @property
    def client(self) -> dict[str, str]:
        """The environment in which boto3 and s3fs talk to it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def put(self, name: str, data: bytes) -> None:
        """Make an object of the bucket."""
        headers = {"Content-Type": "application/octet-stream"}
        request = Request(f"http://127.0.0.1:{self.port}/bucket/{quote(name)}", data, headers, method="PUT")
        build_opener(ProxyHandler({})).open(request, timeout=60).close()


_SERVE_S3 = """
import os, sys
from pathlib import Path
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0)
server.start()
Path(sys.argv[1] + ".tmp").write_text(str(server.get_host_and_port()[1]))
os.replace(sys.argv[1] + ".tmp", sys.argv[1])
sys.stdin.read()
"""


@contextmanager
def s3_server(folder: Path) -> Iterator[S3]:
    """Serve an empty bucket."""
    port = folder / "port.txt"
    with _process([sys.executable, "-c", _SERVE_S3, str(port)], folder / "server.log"):
        store = S3(int(_await(port)))
        bucket = Request(f"http://127.0.0.1:{store.port}/bucket", b"", method="PUT")
        build_opener(ProxyHandler({})).open(bucket, timeout=60).close()
        yield store


@contextmanager
def _process(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=_plain(os.environ))
        try:
            yield
        finally:
            server.kill()
            server.communicate()


def _plain(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if not key.lower().endswith("_proxy")}


def _await(file: Path) -> str:
    deadline = time.monotonic() + _SECONDS_TO_START
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server did not start: {(file.parent / 'server.log').read_text()}")
        time.sleep(0.05)
    return file.read_text()
