"""A service on loopback that takes jobs as Dataflow does, and really runs them, on a bucket of the GCS emulator."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from apache_beam.portability.api import beam_runner_api_pb2

from object_stores import Gcs
from worker_venv import WorkerVenv

PROJECT, REGION = "my-project", "europe-west4"
_JOBS = f"/v1b3/projects/{PROJECT}/locations/{REGION}/jobs"


@dataclass
class Job:
    """A job: what was asked for, its state and what it has to say. `dependencies` are {name: bytes}, as staged."""

    asked: dict[str, Any]
    number: int
    state: str = "JOB_STATE_RUNNING"
    errors: list[str] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)
    dependencies: dict[str, bytes] = field(default_factory=dict)
    proto: beam_runner_api_pb2.Pipeline | None = None

    @property
    def id(self) -> str:
        return f"2026-12-01_08_00_{self.number:02}-1234567890123456789"

    @property
    def answer(self) -> dict[str, Any]:
        asked = {key: self.asked[key] for key in ("name", "clientRequestId")}
        return asked | {"id": self.id, "projectId": PROJECT, "location": REGION, "currentState": self.state}


class Dataflow:
    """The service. Jobs run while `go_on` is set, and wait else; `broken`, if it is any text, lets them fail with it.

    Real are the staging, the digests, the wheel's installation and the run of the graph; the machines are one process.
    """

    def __init__(self, gcs: Gcs, folder: Path) -> None:
        self.gcs, self.folder = gcs, folder
        self.jobs: list[Job] = []
        self.go_on, self.broken = threading.Event(), ""
        self.go_on.set()
        self.threads: list[threading.Thread] = []
        self.port = 0
        self.venv: WorkerVenv | None = None
        self.installed: set[str] = set()

    @property
    def flags(self) -> list[str]:
        """What a command needs to come here, besides what it needs for Dataflow."""
        listing = "--experiments=disable_logging_submission_environment"  # of packages, which takes a while
        return [f"--dataflow_endpoint=http://localhost:{self.port}", "--no_auth", listing]

    def create(self, asked: dict[str, Any]) -> Job:
        for job in self.jobs:
            if job.asked["name"] == asked["name"] and job.state == "JOB_STATE_RUNNING":
                return job  # as the service has it: the one that is active, with the id of its own request
        job = Job(asked, len(self.jobs))
        self.jobs.append(job)
        self.threads.append(threading.Thread(target=self._run, args=[job], daemon=True))
        self.threads[-1].start()
        return job

    def _run(self, job: Job) -> None:
        try:
            self._work(job)
            job.state = "JOB_STATE_DONE"
        except Exception as error:
            job.errors.append(f"Error message from worker: {error}")
            job.state = "JOB_STATE_FAILED"

    def _work(self, job: Job) -> None:
        place = self.folder / job.id
        place.mkdir()
        job.proto = self._fetch(job)
        self.go_on.wait()
        if self.broken:
            raise RuntimeError(self.broken)
        if self.venv is None:
            self.venv = WorkerVenv(self.folder / "venv")
        for name in job.dependencies["extra_packages.txt"].decode().split():
            if name not in self.installed:
                (place / name).write_bytes(job.dependencies[name])
                self.venv.install(place / name)
                self.installed.add(name)
        (place / "pipeline.pb").write_bytes(job.proto.SerializeToString())
        script = str(Path(__file__).with_name("on_dataflow_worker.py"))
        self.venv.run(script, str(place / "pipeline.pb"), str(place / "told.json"), **self.gcs.client)
        job.told = json.loads((place / "told.json").read_text())

    def _fetch(self, job: Job) -> beam_runner_api_pb2.Pipeline:
        """The staged graph, and what it depends on, with the digests that were promised."""
        options = job.asked["environment"]["sdkPipelineOptions"]["options"]
        data = self._get(options["pipelineUrl"])
        assert sha256(data).hexdigest() == options["pipelineProtoHash"]
        proto = beam_runner_api_pb2.Pipeline.FromString(data)
        for environment in proto.components.environments.values():
            for dependency in environment.dependencies:
                place = beam_runner_api_pb2.ArtifactUrlPayload.FromString(dependency.type_payload)
                role = beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(dependency.role_payload)
                job.dependencies[role.staged_name] = self._get(place.url)
                assert sha256(job.dependencies[role.staged_name]).hexdigest() == place.sha256
        return proto

    def _get(self, url: str) -> bytes:
        return self.gcs.get(url.removeprefix("gs://bucket/"))

    def find(self, job_id: str) -> Job:
        return next(job for job in self.jobs if job.id == job_id)


def _metrics(job: Job) -> dict[str, Any]:
    metrics = []
    for name, value in job.told.get("counters", {}).items():
        context = {"namespace": "episode_windows", "step": "s2"}
        metrics.append({"name": {"origin": "user", "name": name, "context": context}, "scalar": value})
        tentative = {"origin": "user", "name": name, "context": {**context, "tentative": "true"}}
        metrics.append({"name": tentative, "scalar": value})
    return {"metrics": metrics, "metricTime": "2026-12-01T08:00:00Z"}


def _messages(job: Job) -> dict[str, Any]:
    return {
        "jobMessages": [
            {
                "id": f"m{i}",
                "time": f"2026-12-01T08:00:{i:02}Z",
                "messageImportance": "JOB_MESSAGE_ERROR",
                "messageText": text,
            }
            for i, text in enumerate(job.errors)
        ]
    }


@contextmanager
def dataflow_service(gcs: Gcs, folder: Path) -> Iterator[Dataflow]:
    """Serve on a free port."""
    service = Dataflow(gcs, folder)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(service.create(asked).answer if self.path.partition("?")[0] == _JOBS else None)

        def do_GET(self) -> None:
            job_id, _, what = self.path.partition("?")[0].removeprefix(f"{_JOBS}/").partition("/")
            job = service.find(job_id)
            answers = {"": lambda job: job.answer, "messages": _messages, "metrics": _metrics}
            self._answer(answers[what](job))

        def _answer(self, document: dict[str, Any] | None) -> None:
            body = json.dumps(document).encode()
            self.send_response(200 if document is not None else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.go_on.set()
        deadline = time.monotonic() + 120
        for worker in service.threads:
            worker.join(max(0, deadline - time.monotonic()))
        server.shutdown()
        server.server_close()
