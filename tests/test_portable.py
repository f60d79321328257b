"""The job as Beam's portable runners get it: what is in its graph, what is not, and through a job server."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.portability.portable_runner import PortableRunner

from conftest import BuildHere, SaveEpisodes
from pipeline import BuildOptions, plan
from pipeline.check_flags import check_beam_args
from pipeline.transforms import write_dataset

ROOT = str(Path(__file__).parent.parent)
GROUP, RESHUFFLE = "beam:transform:group_by_key:v1", "beam:transform:reshuffle:v1"
# What Beam's SDKs and runners in other languages know; any other coder they take as bytes with a length, whole.
STANDARD = {f"beam:coder:{name}:v1" for name in ("bytes", "string_utf8", "kv", "varint", "iterable", "global_window")}


def graph(tmp_path: Path, save_episodes: SaveEpisodes, episodes: int, **options: Any) -> Any:
    """The components of the job, as a job server would get them."""
    inputs = save_episodes(tmp_path / f"{episodes:04d}", [np.zeros((40, 2), np.float32)] * episodes)
    planned = plan(BuildOptions((inputs,), str(tmp_path / "out"), window_length=8, splits={"train": "1"}, **options))
    flags = PipelineOptions(["--environment_type=LOOPBACK"])
    pipeline = beam.Pipeline(options=flags)
    write_dataset(pipeline, planned.recipe, planned.output, planned.manifest.fingerprint)
    proto = PortableRunner._optimize_pipeline(pipeline.to_runner_api(), flags)
    assert list(proto.requirements) == []
    return proto.components


def test_the_graph_has_only_what_every_portable_runner_does(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    parts = graph(tmp_path, save_episodes, 3, num_shards=2).transforms.values()
    primitive = [
        each for each in parts if not each.subtransforms and list(each.inputs.values()) != [*each.outputs.values()]
    ]
    assert sorted({each.spec.urn for each in primitive}) == [
        GROUP,
        "beam:transform:impulse:v1",
        "beam:transform:pardo:v1",
    ]
    assert [each.unique_name for each in parts if each.spec.urn == RESHUFFLE] == ["Shards/Spread"]
    functions = [api.ParDoPayload.FromString(each.spec.payload) for each in primitive if "pardo" in each.spec.urn]
    assert len(functions) >= 5
    for function in functions:
        assert not function.side_inputs
        assert not function.state_specs
        assert not function.timer_family_specs
        assert not function.restriction_coder_id
        assert not function.requests_finalization
        assert not function.requires_time_sorted_input
        assert not function.requires_stable_input
    assert all(len(each.inputs) <= 1 and len(each.outputs) == 1 for each in primitive), "one branch"


def test_what_runners_look_into_has_standard_coders(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    parts = graph(tmp_path, save_episodes, 3, num_shards=2)
    urns = {name: coder.spec.urn for name, coder in parts.coders.items()}
    for each in parts.transforms.values():
        if each.spec.urn in {GROUP, RESHUFFLE}:
            for collection in (*each.inputs.values(), *each.outputs.values()):
                coder = parts.coders[parts.pcollections[collection].coder_id]
                key, value = coder.component_coder_ids
                assert (coder.spec.urn, urns[key]) == ("beam:coder:kv:v1", "beam:coder:varint:v1")
                if each.spec.urn == RESHUFFLE:
                    assert urns[value] == "beam:coder:varint:v1"
                elif collection in each.outputs.values():
                    assert urns[value] == "beam:coder:iterable:v1"
    for collection in parts.pcollections.values():
        urn = urns[collection.coder_id]
        assert urn in STANDARD or urn == "beam:coder:pickled_python:v1"
    assert {each.window_coder_id for each in parts.windowing_strategies.values()} == {
        name for name, urn in urns.items() if urn == "beam:coder:global_window:v1"
    }


def test_the_graph_is_as_small_for_any_number_of_episodes_and_shards(
    tmp_path: Path, save_episodes: SaveEpisodes
) -> None:
    few = graph(tmp_path, save_episodes, 2, num_shards=2).ByteSize()
    many = graph(tmp_path, save_episodes, 1500, num_shards=700).ByteSize()
    assert few < 40_000
    assert abs(many - few) < 200


def test_a_job_server_builds_the_same_bytes(tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere) -> None:
    random = np.random.default_rng(8)
    inputs = save_episodes(tmp_path / "in", [random.standard_normal((90 + i, 3)).astype(np.float32) for i in range(5)])
    options = {"window_length": 8, "splits": {"train": "0.6", "test": "0.4"}, "num_shards": 3, "name": "waves"}
    build_here(inputs, tmp_path / "here", **options)
    flags = ["--window_length=8", "--splits=train=0.6,test=0.4", "--num_shards=3", "--name=waves"]
    server = ["--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=LOOPBACK"]
    command = [sys.executable, "-m", "pipeline", "build", f"--input={inputs}", f"--output={tmp_path / 'out'}"]
    environment = os.environ | {"PYTHONPATH": ROOT}
    done = subprocess.run([*command, *flags, *server], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

    def digests(folder: Path) -> dict[str, str]:
        return {file.name: sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}

    assert digests(tmp_path / "out") == digests(tmp_path / "here")


@pytest.mark.parametrize(
    "flags",
    [
        ["--runner=FlinkRunner", "--flink_master=host:8081", "--flink_version=1.20", "--environment_type=LOOPBACK"],
        ["--runner=FlinkRunner", "--flink_master=host:8081", "--flink_submit_uber_jar", "--parallelism=8"],
        ["--runner=SparkRunner", "--spark_master_url=spark://host:7077", "--environment_type=LOOPBACK"],
        [
            "--runner=PortableRunner",
            "--job_endpoint=host:8099",
            "--environment_type=DOCKER",
            "--environment_config=image",
        ],
        ["--runner=PortableRunner", "--job_endpoint=host:8099", "--artifact_endpoint=host:8098"],
        ["--environment_type=PROCESS", '--environment_config={"command": "/opt/boot"}'],
    ],
)
def test_flags_of_the_documentation_are_known_to_beam(flags: list[str]) -> None:
    check_beam_args(tuple(flags))
