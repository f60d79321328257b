import json
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes
from pipeline import BuildOptions, build, plan
from pipeline.publish import publish
from pipeline.staging import stage_plan
from pipeline.tally import Count, Tally, format_report, parse_metrics
from pipeline.transforms import write_dataset
from pipeline.write import write_shard
from shards import OutputError, load_manifest

ARRAYS = [np.zeros((steps, 2), "f4") for steps in (100, 7, 55, 31)]  # 186 steps of episodes that have windows
OPTIONS = {"window_length": 10, "shift": 5, "splits": {"train": "1"}, "num_shards": 3}
WINDOWS = 19 + 10 + 5


def test_counts_add_up_and_come_back_from_metrics() -> None:
    tally = Tally()
    tally.add("read", 2, 90, 360, 1_500)
    tally.add("read", 1, 10, 40, 2_500)
    tally.add("write", 0, 0, 0, 999)

    assert tally.counts["read"] == Count(3, 100, 400, 4_000)
    assert tally.metrics() == {
        "read.in": 3,
        "read.out": 100,
        "read.bytes": 400,
        "read.microseconds": 4,
        "write.in": 0,
        "write.out": 0,
        "write.bytes": 0,
        "write.microseconds": 0,
    }
    assert parse_metrics(tally.metrics()).counts == {"read": Count(3, 100, 400, 4_000), "write": Count()}


def test_a_report_has_the_stages_in_their_order(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    manifest = build_here(save_episodes(tmp_path / "in", ARRAYS), tmp_path / "out", **OPTIONS).manifest
    first, second = Tally(), Tally()
    first.add("write", 5, 5, 500, 2_500_000)
    second.add("survey", 4, 3, 999, 1_000)

    report = json.loads(format_report(manifest, first, second))

    assert list(report["stages"].items()) == [
        ("survey", {"in": {"files": 4}, "out": {"episodes": 3}, "bytes": 999, "milliseconds": 0.001}),
        ("write", {"in": {"windows": 5}, "out": {"windows": 5}, "bytes": 500, "milliseconds": 2.5}),
    ]
    assert report["manifest"] == {
        "windows": WINDOWS,
        "bytes": manifest.bytes,
        "records": WINDOWS,
        "shards": 3,
        "fingerprint": manifest.fingerprint,
    }


def test_the_report_of_a_build_counts_what_the_manifest_has(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs, report = save_episodes(tmp_path / "in", ARRAYS), tmp_path / "report.json"

    manifest = build(BuildOptions((inputs,), str(tmp_path / "out"), report=str(report), **OPTIONS))

    document = json.loads(report.read_text())
    stages = {
        stage: (*counts["in"].items(), *counts["out"].items(), counts["bytes"])
        for stage, counts in document["stages"].items()
    }
    assert stages == {
        "read": (("spans", WINDOWS), ("steps", 340), 340 * 8),  # in so small a dataset each window is a span
        "survey": (("files", 4), ("episodes", 4), sum(128 + array.nbytes for array in ARRAYS)),
        "plan": (("episodes", 4), ("windows", WINDOWS), manifest.bytes),
        "measure": (("steps", 340), ("steps", 100 + 55 + 30), 185 * 8),
        "cut": (("steps", 340), ("windows", WINDOWS), manifest.bytes),
        "write": (("windows", WINDOWS), ("windows", WINDOWS), manifest.bytes),
        "keep": (("windows", 0), ("windows", 0), 0),
        "publish": (("windows", WINDOWS), ("windows", WINDOWS), manifest.bytes),
    }
    assert all(counts["milliseconds"] >= 0 for counts in document["stages"].values())
    assert document["stages"]["write"]["milliseconds"] > 0
    assert document["manifest"]["windows"] == manifest.windows == WINDOWS


def test_the_counts_are_metrics_of_the_runner(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    planned = plan(BuildOptions((save_episodes(tmp_path / "in", ARRAYS),), str(tmp_path / "out"), **OPTIONS))
    stage_plan(planned)
    pipeline = beam.Pipeline(runner="FnApiRunner")
    write_dataset(pipeline, planned.recipe, planned.output, planned.manifest.fingerprint)

    result = pipeline.run()
    result.wait_until_finish()

    counters = result.metrics().query(beam.metrics.MetricsFilter().with_namespace("episode_windows"))["counters"]
    counted = {counter.key.metric.name: counter.committed for counter in counters}
    manifest = load_manifest(tmp_path / "out")
    assert (counted["write.out"], counted["write.bytes"]) == (manifest.windows, manifest.bytes)
    assert (counted["cut.out"], counted["cut.bytes"]) == (manifest.windows, manifest.bytes)
    assert (counted["publish.in"], counted["publish.bytes"]) == (manifest.windows, manifest.bytes)
    assert {name.partition(".")[2] for name in counted} == {"in", "out", "bytes", "microseconds"}


def test_a_report_that_cannot_be_where_it_is_asked_for_is_told_before_anything_is_written(
    tmp_path: Path, save_episodes: SaveEpisodes
) -> None:
    inputs = save_episodes(tmp_path / "in", ARRAYS)
    wrong = {
        "nowhere/report.json": "cannot be written: there is no folder for it",
        "in": "cannot be written: it is a folder",
        "out/report.json": "would lie in the dataset's folder: choose another place",
        "in/e001.npy": "would replace an input: choose another place",
    }
    (tmp_path / "out").mkdir()
    for report, why in wrong.items():
        with pytest.raises(OutputError, match=f"^the report {tmp_path}/{report} {why}$"):
            build(BuildOptions((inputs,), str(tmp_path / "out"), report=str(tmp_path / report), **OPTIONS))
    assert list((tmp_path / "out").iterdir()) == []
    assert np.load(tmp_path / "in/e001.npy").shape == (7, 2)


def test_a_dataset_that_was_whole_and_only_moved_is_reported_as_kept(
    tmp_path: Path, save_episodes: SaveEpisodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.json"
    options = BuildOptions(
        (save_episodes(tmp_path / "in", ARRAYS),), str(tmp_path / "out"), report=str(report), **OPTIONS
    )
    planned = plan(options)
    stage_plan(planned)
    done = [write_shard(planned.recipe, task) for task in planned.tasks()]
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.publish.finish_publishing", lambda output, staging: "")
        publish(planned.output, planned.staging, done, planned.manifest.fingerprint)

    manifest = build(options)

    stages = json.loads(report.read_text())["stages"]
    assert (stages["keep"]["out"], stages["keep"]["bytes"]) == ({"windows": WINDOWS}, manifest.bytes)
    assert "write" not in stages
