"""Building on Dataflow as a user does, up to a service on loopback that really runs the jobs, without TensorFlow."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2

from conftest import SaveEpisodes
from fake_dataflow import Dataflow, dataflow_service
from object_stores import Gcs
from pipeline import BuildOptions, build, plan
from pipeline.__main__ import main
from pipeline.dataflow import MIB, Facts, Shape, check_flags, default_flags, job_name, worker_shape
from pipeline.runner import seconds_to_next
from pipeline.submit import check_launch, flags_for, on_dataflow, submit
from pipeline.transforms import write_dataset
from shards import BuildError, OptionError

STAGING = "gs://bucket/out/incomplete.tmp/0123456789abcdef"
FLAGS = ["--runner=DataflowRunner", "--project=my-project", "--region=europe-west4", "--temp_location=gs://bucket/temp"]
WINDOWS = ["--window_length=64", "--shift=32", "--num_shards=3"]


def facts(shards: int = 5000, shard_bytes: int = 128 * MIB) -> Facts:
    return Facts("robot_arm", STAGING, shards, shard_bytes)


def test_what_nobody_has_to_give() -> None:
    assert default_flags({}, facts()) == [
        "--job_name=episode-windows-robot-arm-53b44dc6",
        "--labels=dataset=robot_arm",
        "--machine_type=n1-standard-2",
        "--number_of_worker_harness_threads=10",
        "--disk_size_gb=30",
        "--max_num_workers=1000",
        "--no_save_main_session",
    ]


def test_what_is_given_stays() -> None:
    given = {"job_name": "mine", "labels": ["a=b"], "disk_size_gb": 50, "save_main_session": True, "num_workers": 7}

    assert default_flags(given, facts(shards=9)) == [
        "--machine_type=n1-standard-2",
        "--number_of_worker_harness_threads=10",
        "--max_num_workers=7",
    ]
    assert default_flags({"max_num_workers": 3}, facts())[-2:] == ["--disk_size_gb=30", "--no_save_main_session"]


def test_a_machine_or_threads_of_the_users_choice() -> None:
    assert "--number_of_worker_harness_threads=10" in default_flags({"machine_type": "c3-standard-8"}, facts())
    large = facts(shard_bytes=2000 * MIB)
    assert "--number_of_worker_harness_threads=1" in default_flags({"machine_type": "c3-standard-8"}, large)
    assert "--machine_type=n1-highmem-8" in default_flags({"number_of_worker_harness_threads": 20}, large)


@pytest.mark.parametrize(
    ("mib", "shape"),
    [
        (1, Shape("n1-standard-2", 2, 12)),
        (128, Shape("n1-standard-2", 2, 10)),
        (256, Shape("n1-standard-2", 2, 7)),
        (512, Shape("n1-standard-2", 2, 4)),
        (1024, Shape("n1-highmem-2", 2, 4)),
        (2048, Shape("n1-highmem-4", 1, 10)),
        (8192, Shape("n1-highmem-8", 1, 5)),
        (40000, Shape("n1-highmem-32", 1, 4)),
    ],
)
def test_a_worker_has_memory_for_the_shards_that_it_writes_at_once(mib: int, shape: Shape) -> None:
    assert worker_shape(mib * MIB) == shape


def test_shards_that_no_worker_can_hold_are_told() -> None:
    with pytest.raises(OptionError, match=r"no worker has memory for 4 shards of 104,857,600,000 bytes: ask for more"):
        worker_shape(100_000 * MIB)


def test_one_process_a_worker_where_shards_are_large() -> None:
    flags = default_flags({}, facts(shards=3, shard_bytes=2048 * MIB))

    assert flags[-2:] == ["--experiments=no_use_multiple_sdk_containers", "--no_save_main_session"]
    assert "--max_num_workers=3" in flags


def test_the_name_of_a_job_is_one_that_dataflow_takes() -> None:
    for dataset in ("a", "robot_arm_", "r__2", "x" * 100, "x" * 37 + "_y" * 20):
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name := job_name(dataset, STAGING))
        assert len(name) <= 63
    assert job_name("a", STAGING) != job_name("a", STAGING.replace("out", "other"))


@pytest.mark.parametrize("runner", ["DataflowRunner", "dataflow", "apache_beam.runners.dataflow.DataflowRunner"])
def test_dataflow_by_its_names(runner: str) -> None:
    assert on_dataflow(["--runner", runner])
    assert not on_dataflow(["--project=dataflow", "--runner=FlinkRunner"])
    assert not on_dataflow([])


GIVEN = {"project": "p", "region": "r", "temp_location": "gs://bucket/temp"}


@pytest.mark.parametrize(
    ("changed", "inputs", "output", "why"),
    [
        (
            {"project": None, "region": None},
            "gs://b/in",
            "gs://b/out",
            r"^DataflowRunner needs --project and --region,",
        ),
        ({"temp_location": ""}, "gs://b/in", "gs://b/out", "^DataflowRunner needs --temp_location, such as"),
        ({"temp_location": "/tmp/x"}, "gs://b/in", "gs://b/out", "^--temp_location must be a folder of a bucket"),
        ({"temp_location": "gs://b"}, "gs://b/in", "gs://b/out", "^--temp_location must be a folder of a bucket"),
        ({"staging_location": "x"}, "gs://b/in", "gs://b/out", "^--staging_location must be a folder of a bucket"),
        ({}, "in", "gs://b/out", "^workers on Dataflow cannot reach --input in: it must be a URL"),
        ({}, "gs://b/in", "/out", "^workers on Dataflow cannot reach --output /out: it must be a URL"),
        ({"template_location": "gs://b/t"}, "gs://b/in", "gs://b/out", "^--template_location makes no sense"),
    ],
)
def test_what_could_not_run_is_told(changed: dict[str, Any], inputs: str, output: str, why: str) -> None:
    check_flags(GIVEN, ["gs://b/in"], "gs://b/out")

    with pytest.raises(OptionError, match=why):
        check_flags(GIVEN | changed, ["gs://b/in", inputs], output)


def test_mistakes_end_the_command_before_anything_is_read_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ["--input", str(tmp_path / "absent"), "--output", str(tmp_path / "out"), *WINDOWS]

    assert main(["build", *paths, "--runner=DataflowRunner"]) == 2
    assert "python -m pipeline: DataflowRunner needs --project and --region and" in capsys.readouterr().err
    assert main(["build", *paths, *FLAGS]) == 2
    assert "cannot reach --input" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_beam_refuses_is_refused_before_anything_is_written() -> None:
    flags = ["--runner=DataflowRunner", "--project=No Project", *FLAGS[2:]]

    with pytest.raises(OptionError, match="No Project"):
        check_launch(flags, ["gs://b/in"], "gs://b/out")


def test_beam_without_its_google_part_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apache_beam.runners.dataflow.internal.apiclient", None)

    with pytest.raises(OptionError, match=r"pip install 'episode-windows\[gcp\]'$"):
        check_launch(FLAGS, ["gs://b/in"], "gs://b/out")


def test_many_shards_are_listed_less_often() -> None:
    assert (seconds_to_next(False, 0.001), seconds_to_next(True, 0.2), seconds_to_next(True, 30.0)) == (
        0.1,
        10.0,
        600.0,
    )


def test_an_active_job_that_is_not_of_this_build_is_told(tmp_path: Path) -> None:
    class Refused:
        options = PipelineOptions(["--job_name=mine"])

        def run(self) -> None:
            raise RuntimeError("There is already active job named mine with id: 2026-12-01_08_00_00-123.")

    with pytest.raises(BuildError, match=r"^a Dataflow job named mine is active: wait for its end, or cancel it$"):
        submit(Refused(), STAGING, tmp_path / "job.txt")
    assert not list(tmp_path.iterdir())


TRANSFORMS = ["Plan", "Shards", "Shards/Tasks", "Shards/Spread", "Shards/Write", "Dataset", "Dataset/Gather"]


def test_the_graph_is_small_and_brings_the_project_along_but_no_tensorflow(
    tmp_path: Path, save_episodes: SaveEpisodes
) -> None:
    inputs = save_episodes(tmp_path / "in", [np.zeros(200, np.float32)] * 20)
    planned = plan(BuildOptions((inputs,), str(tmp_path / "out"), 10, num_shards=7, beam_args=tuple(FLAGS)))
    flags = [*flags_for(planned, str(tmp_path)), *FLAGS, "--dry_run=True"]

    # Beam's own validation, and its list of what is installed here, are of no interest, and slow.
    flags += ["--dataflow_endpoint=http://localhost:1", "--experiments=disable_logging_submission_environment"]
    pipeline = beam.Pipeline(options=PipelineOptions(flags))
    write_dataset(pipeline, planned.recipe, planned.output, planned.manifest.fingerprint)
    proto = pipeline.run().job.proto_pipeline

    assert pipeline.options.get_all_options()["save_main_session"] is False
    (environment,) = proto.components.environments.values()
    staged = {}
    for dependency in environment.dependencies:
        role = beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(dependency.role_payload)
        file = beam_runner_api_pb2.ArtifactFilePayload.FromString(dependency.type_payload)
        staged[role.staged_name] = Path(file.path).read_bytes()
    (wheel,) = tmp_path.glob("*.whl")
    assert staged == {wheel.name: wheel.read_bytes(), "extra_packages.txt": f"{wheel.name}\n".encode()}
    names = {transform.unique_name for transform in proto.components.transforms.values()}
    assert names >= {*TRANSFORMS, "Dataset/Publish"}
    graph = proto.SerializeToString()
    assert len(graph) < 40_000
    assert b"e000.npy" not in graph
    assert b"-of-00007" not in graph


@pytest.fixture(scope="module")
def service(gcs: Gcs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataflow]:
    with dataflow_service(gcs, tmp_path_factory.mktemp("dataflow")) as running:
        yield running


@pytest.fixture(scope="module")
def arrays() -> list[np.ndarray]:
    return [np.random.default_rng(i).normal(size=(700 + 100 * i, 2)).astype(np.float32) for i in range(4)]


def put_episodes(gcs: Gcs, folder: str, arrays: list[np.ndarray]) -> None:
    for i, array in enumerate(arrays):
        file = io.BytesIO()
        np.save(file, array)
        gcs.put(f"{folder}/e{i:03d}.npy", file.getvalue())


@pytest.fixture
def start(service: Dataflow, arrays: list[np.ndarray], request: pytest.FixtureRequest) -> Iterator[Any]:
    """Start a build, on the service, of the test's own episodes into its own folder; a function that waits for it."""
    folder = request.node.name
    put_episodes(service.gcs, f"{folder}/in", arrays)
    started = []

    def run() -> "subprocess.Popen[str]":
        paths = [f"--input=gs://bucket/{folder}/in", f"--output=gs://bucket/{folder}/out"]
        command = [sys.executable, "-m", "pipeline", "build", *paths, *WINDOWS, *FLAGS, *service.flags]
        environment = os.environ | service.gcs.client
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        )
        return started[-1]

    yield run
    service.go_on.set()
    for process in started:
        process.kill()
        process.communicate()


def wait_for_job(process: "subprocess.Popen[str]") -> str:
    """The id of the job that a command tells of."""
    assert process.stderr is not None
    match = re.match(
        r"Dataflow job (\S+): https://console\.cloud\.google\.com/dataflow/jobs/", process.stderr.readline()
    )
    assert match is not None
    return match[1]


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_build_on_dataflow_gives_the_bytes_of_a_local_one(
    service: Dataflow, start: Any, arrays: list[np.ndarray], tmp_path: Path, save_episodes: SaveEpisodes
) -> None:
    inputs = save_episodes(tmp_path / "in", arrays)
    build(BuildOptions((inputs,), str(tmp_path / "out"), 64, shift=32, num_shards=3))
    folder = "test_a_build_on_dataflow_gives_the_bytes_of_a_local_one"

    process = start()
    out, err = process.communicate(timeout=200)

    assert process.returncode == 0, err
    assert service.gcs.objects(f"{folder}/out/") == files(tmp_path / "out")
    assert "wrote 101 windows" in out
    job = service.jobs[-1]
    assert f"Dataflow job {job.id}: https://console.cloud.google.com/dataflow/jobs/europe-west4/{job.id}?" in err
    assert re.fullmatch("episode-windows-out-[0-9a-f]{8}", job.asked["name"])
    assert job.asked["labels"] == {"dataset": "out"}
    (pool,) = job.asked["environment"]["workerPools"]
    assert (pool["machineType"], pool["diskSizeGb"], pool["numThreadsPerWorker"]) == ("n1-standard-2", 30, 12)
    assert pool["autoscalingSettings"] == {"maxNumWorkers": 2}
    wheels = [name for name in job.dependencies if name.endswith(".whl")]
    assert [re.sub("-0[0-9a-f]{12}-", "-", wheel) for wheel in wheels] == ["episode_windows-0.1.0-py3-none-any.whl"]
    assert sorted(job.dependencies) == sorted([*wheels, "extra_packages.txt"])
    assert service.venv is not None
    assert job.told["project"] == f"{service.venv.packages}/pipeline/__init__.py"
    assert job.told["modules"] == []
    assert job.told["counters"]["write.out"] == 101

    process = start()
    _, err = process.communicate(timeout=100)
    assert process.returncode == 2
    assert "out already holds a dataset, that of this very plan: choose another folder" in err
    assert service.jobs[-1] is job


def test_ctrl_c_leaves_the_job_which_the_same_command_waits_for(service: Dataflow, start: Any) -> None:
    service.go_on.clear()
    process = start()
    job_id = wait_for_job(process)

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 130
    link = f"https://console.cloud.google.com/dataflow/jobs/europe-west4/{job_id}?project=my-project"
    assert err[err.index("python -m pipeline:") :] == (
        f"python -m pipeline: interrupted; the job {job_id} goes on without this command, and publishes the dataset at"
        " its end.\n"
        f"  see it:     {link}\n"
        f"  cancel it:  gcloud dataflow jobs cancel {job_id} --project=my-project --region=europe-west4\n"
        "The same command again waits for it while it runs; later it finds the dataset, or goes on with what is"
        " finished\n"
    )
    assert service.jobs[-1].state == "JOB_STATE_RUNNING"

    jobs = len(service.jobs)
    process = start()
    assert wait_for_job(process) == job_id
    service.go_on.set()
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "wrote 101 windows" in out
    assert len(service.jobs) == jobs


def test_workers_tell_which_episode_failed(service: Dataflow, start: Any, arrays: list[np.ndarray]) -> None:
    service.go_on.clear()
    process = start()
    wait_for_job(process)
    put_episodes(service.gcs, "test_workers_tell_which_episode_failed/in", [array * 2 for array in arrays[:1]])

    service.go_on.set()
    _, err = process.communicate(timeout=200)

    assert process.returncode == 1
    assert "python -m pipeline: 3 of the shards could not be written:\n" in err
    assert "in/e000.npy was written to, or went away, while the build ran" in err
    assert "Traceback" not in err


def test_a_job_that_fails_tells_why_and_where_to_look(
    service: Dataflow, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = "Traceback (most recent call last):\n  File 'x'\nMemoryError: no room [while running 'Shards/Write']"
    monkeypatch.setattr(service, "broken", trace)
    process = start()

    _, err = process.communicate(timeout=200)

    job_id = service.jobs[-1].id
    assert process.returncode == 1
    assert err[err.index("python -m pipeline:") :] == (
        "python -m pipeline: MemoryError: no room\n"
        "The same command goes on with what is finished; with --verbose it shows Beam's log.\n"
        f"The Dataflow job is https://console.cloud.google.com/dataflow/jobs/europe-west4/{job_id}?project=my-project;"
        f" if it still runs: gcloud dataflow jobs cancel {job_id} --project=my-project --region=europe-west4\n"
    )


def test_plan_needs_only_headers_in_a_bucket(gcs: Gcs, arrays: list[np.ndarray]) -> None:
    put_episodes(gcs, "planned/in", arrays)
    command = [sys.executable, "-m", "pipeline", "plan", "--input=gs://bucket/planned/in", "--json", *WINDOWS]
    command += ["--output=gs://bucket/planned/out", *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ | gcs.client)

    assert done.returncode == 0, done.stderr
    described = json.loads(done.stdout)
    assert [split["windows"] for split in described["splits"]] == [101]
    assert gcs.names("planned/out") == []
