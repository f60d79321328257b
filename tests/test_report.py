"""What `plan` says: to programs, and to people."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import SaveEpisodes
from pipeline import BuildOptions, DatasetPlan, plan
from pipeline.report import describe_plan, format_plan
from shards.text import format_bytes
from shards.windows import TAILS

LABELS = """path,speaker,reward,word
ann/0.npz,ann,1,yes
ann/1.npz,ann,0.5,no
bob/0.npz,bob,2,no
bob/1.npz,bob,nan,yes
cyd/0.npz,cyd,0,yes
cyd/9.npz,cyd,0,yes
dan/0.npz,dan,0,yes
eve/0.npz,eve,0,yes
fay/0.npz,fay,0,yes
"""


@pytest.fixture
def options(tmp_path: Path) -> BuildOptions:
    """Six speakers' padded windows, grouped and labelled; one file is empty and one has no row."""
    for name, steps in {"ann/0": 21, "ann/1": 10, "bob/0": 30, "bob/1": 0, "cyd/0": 45, "dan/0": 7, "gus/0": 9}.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        np.savez(tmp_path / f"in/{name}.npz", x=np.zeros((steps, 3), "f4"), y=np.zeros(steps, "i2"), gain=1.0)
    (tmp_path / "in/eve").mkdir()
    (tmp_path / "in/eve/0.npz").touch()
    (tmp_path / "labels.csv").write_text(LABELS)
    return BuildOptions(
        inputs=(str(tmp_path / "in"),),
        output="out",
        window_length=8,
        shift=4,
        stride=2,
        tail="pad",
        windows_per_record=2,
        labels=str(tmp_path / "labels.csv"),
        group_by="speaker",
        splits={"train": "0.7", "test": "0.3"},
        on_error="skip",
        num_shards=2,
    )


def described(planned: DatasetPlan) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(describe_plan(planned)))
    assert found.pop("free_bytes") > 0
    assert found.pop("root") == planned.episodes.root
    return found


def test_a_grouped_labelled_padded_dataset_is_described(options: BuildOptions) -> None:
    assert described(plan(options)) == {
        "name": "out",
        "output": "out",
        "window": {"length": 8, "shift": 4, "stride": 2, "tail": "pad", "windows_per_record": 2},
        "episodes": {"found": 8, "used": 5},
        "features": [
            "gain: one float64 an episode",
            "x: float32 with shape (steps, 3)",
            "y: int16 with shape (steps,)",
            "speaker: one of 4 classes (ann, bob, cyd, ...) an episode",
            "reward: one float64 an episode",
            "word: one of 2 classes (no, yes) an episode",
        ],
        "steps": 113,
        "input_bytes": 113 * 14,
        "uncovered_steps": 55,  # every window begins at an even step, and so are all of its steps
        "tails": {
            "drop": {"windows": 14, "padded_steps": 0, "lost_steps": 67, "episodes_without_window": 2},
            "pad": {"windows": 19, "padded_steps": 10, "lost_steps": 55, "episodes_without_window": 0},
            "align": {"windows": 17, "padded_steps": 0, "lost_steps": 57, "episodes_without_window": 2},
        },
        "short": ["bob/1.npz"],
        "skipped": {"eve/0.npz": "is empty", "gus/0.npz": "has no row in labels.csv"},
        "labels_without_episode": ["cyd/9.npz", "fay/0.npz"],
        "splitting": {"by": "episode", "group_by": "speaker", "purge": 0},
        "inflated": False,
        "record_bytes": 500,
        "splits": [
            {
                "name": "train",
                "fraction_asked": "0.7",
                "fraction": 13 / 19,
                "episodes": 3,
                "groups": 2,
                "windows": 13,
                "shards": 2,
                "bytes": 4000,
            },
            {
                "name": "test",
                "fraction_asked": "0.3",
                "fraction": 6 / 19,
                "episodes": 2,
                "groups": 2,
                "windows": 6,
                "shards": 2,
                "bytes": 2000,
            },
        ],
        "windows": 19,
        "bytes": 6000,
        "ratio": 6000 / (113 * 14),
        "recommended": None,
    }


def test_a_grouped_labelled_padded_dataset_is_told(options: BuildOptions) -> None:
    assert format_plan(describe_plan(plan(options)) | {"free_bytes": 10**12}).splitlines() == [
        "dataset   out in out",
        "episodes  5 of 8 used: 113 steps, 1.5 KiB",
        "features  gain: one float64 an episode; x: float32 with shape (steps, 3); y: int16 with shape (steps,);"
        " speaker: one of 4 classes (ann, bob, cyd, ...) an episode; reward: one float64 an episode;"
        " word: one of 2 classes (no, yes) an episode",
        "windows   19 of 8 steps, 2 apart; a window every 4 steps; tail: pad; 2 a record",
        "too short 1 episodes have no window: bob/1.npz",
        "skipped   2 files cannot be used: eve/0.npz is empty, gus/0.npz has no row in labels.csv",
        "labels    2 rows are of no episode: cyd/9.npz, fay/0.npz",
        "uncovered 55 steps (48.7%) lie in no window",
        "",
        "split  episodes  groups  windows              share  shards     size",
        "train         3       2       13  68.4% (0.7 asked)       2  3.9 KiB",
        "test          2       2        6  31.6% (0.3 asked)       2  2.0 KiB",
        "",
        "tail          windows  zero steps  steps lost  without window",
        "drop               14           0          67               2",
        "pad (chosen)       19          10          55               0",
        "align              17           0          57               2",
        "",
        "output    5.9 KiB, 3.79 times the input; free there: 931.3 GiB",
    ]
    assert "free there: unknown" in format_plan(describe_plan(plan(options)) | {"free_bytes": None})


def test_what_is_left_out_is_told_with_three_examples(options: BuildOptions, tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / f"in/{i}.npz").touch()
        np.savez(tmp_path / f"in/s{i}.npz", x=np.zeros((i, 3), "f4"), y=np.zeros(i, "i2"), gain=1.0)

    told = format_plan(describe_plan(plan(replace(options, labels=None, group_by=None, tail="drop"))))

    assert "skipped   6 files cannot be used: 0.npz is empty, 1.npz is empty, 2.npz is empty and 3 more (--json" in told
    assert "too short 9 episodes have no window: ann/1.npz, bob/1.npz, dan/0.npz and 6 more (--json lists them)" in told


def test_sections_are_counted_where_time_is_split(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_episodes(tmp_path / "in", [np.zeros(43), np.zeros(14), np.zeros(3)])
    options = BuildOptions(
        inputs=(inputs,),
        output=str(tmp_path / "out"),
        window_length=5,
        splits={"train": "0.5", "test": "0.5"},
        split_by="time",
        purge=2,
    )

    found = described(plan(options))

    assert found["splitting"] == {"by": "time", "group_by": None, "purge": 2}
    assert [(s["name"], s["windows"], s["groups"], s["fraction_asked"]) for s in found["splits"]] == [
        ("train", 5, None, "0.5"),
        ("test", 5, None, "0.5"),
    ]
    assert found["uncovered_steps"] == 7
    assert found["tails"] == {
        "drop": {"windows": 10, "padded_steps": 0, "lost_steps": 10, "episodes_without_window": 1},
        "pad": {"windows": 13, "padded_steps": 7, "lost_steps": 2, "episodes_without_window": 0},
        "align": {"windows": 12, "padded_steps": 0, "lost_steps": 5, "episodes_without_window": 1},
    }


@pytest.mark.parametrize("tail", ["drop", "pad", "align"])
def test_each_tail_is_told_as_it_would_be_where_time_is_split(
    tmp_path: Path, save_episodes: SaveEpisodes, tail: str
) -> None:
    inputs = save_episodes(tmp_path / "in", [np.zeros(steps) for steps in (43, 14, 3, 90, 27)])
    options = BuildOptions(
        inputs=(inputs,),
        output=str(tmp_path / "out"),
        window_length=5,
        shift=3,
        splits={"train": "0.5", "test": "0.5"},
        split_by="time",
        purge=2,
    )

    told = describe_plan(plan(options))["tails"][tail]
    planned = plan(replace(options, tail=tail))

    assert told["windows"] == planned.manifest.windows
    assert told["lost_steps"] == 177 - planned.source.steps + planned.source.uncovered
    assert told["episodes_without_window"] == planned.source.short


def test_given_splits_have_no_fraction_to_compare_with(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_episodes(tmp_path / "in", {"train/a": np.zeros(60), "test/a": np.zeros(20)})
    options = BuildOptions(inputs=(inputs,), output=str(tmp_path / "out"), window_length=10, splits="dirs")

    planned = plan(options)

    assert [(s["fraction"], s["fraction_asked"]) for s in described(planned)["splits"]] == [(0.75, None), (0.25, None)]
    told = format_plan(describe_plan(planned)).splitlines()
    assert told[5:7] == [
        "split  episodes  windows  share  shards   size",
        "train         1        6  75.0%       1  984 B",
    ]


# Fewer bytes


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=6),
    length=st.integers(1, 20),
    shift=st.integers(1, 8),
    tail=st.sampled_from(TAILS),
    per_record=st.sampled_from([1, 2, 7, "auto"]),
    by_time=st.booleans(),
)
def test_what_is_recommended_is_what_a_plan_of_it_gives(
    tmp_path_factory: pytest.TempPathFactory,
    save_episodes: SaveEpisodes,
    lengths: list[int],
    length: int,
    shift: int,
    tail: Any,
    per_record: Any,
    by_time: bool,
) -> None:
    if max(lengths) < 2 * length:
        return
    inputs = save_episodes(tmp_path_factory.mktemp("in"), [np.zeros((steps, 2)) for steps in lengths])
    options = BuildOptions(
        inputs=(inputs,),
        output="out",
        window_length=length,
        shift=shift,
        tail=tail,
        windows_per_record=per_record,
        splits={"train": "0.5", "test": "0.5"} if by_time else None,
        split_by="time" if by_time else "episode",
    )
    planned = plan(options)
    found = described(planned)
    best = plan(replace(options, windows_per_record="auto")).manifest

    better = found["recommended"]
    if planned.manifest.bytes > 4 * planned.source.bytes and per_record != "auto" and best.bytes < found["bytes"]:
        assert better == {"windows_per_record": best.window.per_record, "bytes": best.bytes}
        again = plan(replace(options, windows_per_record=better["windows_per_record"]))
        assert again.manifest.bytes == better["bytes"] < found["bytes"]
        assert (
            f"smaller   {format_bytes(better['bytes'])} with --windows_per_record {better['windows_per_record']}: "
            in format_plan(describe_plan(planned))
        )
    else:
        assert better is None
        assert "smaller" not in format_plan(describe_plan(planned))


@pytest.mark.parametrize(("shift", "recommended"), [(17, False), (15, True)])
def test_sharing_records_is_recommended_beyond_four_times_the_input(
    tmp_path: Path, save_episodes: SaveEpisodes, shift: int, recommended: bool
) -> None:
    inputs = save_episodes(tmp_path / "in", [np.zeros((64 + 16 * 1000, 64), "u1")])
    planned = plan(BuildOptions(inputs=(inputs,), output="out", window_length=64, shift=shift))
    found = describe_plan(planned)

    assert (found["recommended"] is not None) == recommended == (found["ratio"] > 4)
    assert found["ratio"] == pytest.approx(4 * 16 / shift, rel=0.03)


def test_a_recommendation_can_be_followed_with_the_shards_that_were_asked_for(
    tmp_path: Path, save_episodes: SaveEpisodes
) -> None:
    inputs = save_episodes(tmp_path / "in", [np.zeros(40_000)])
    options = BuildOptions(inputs=(inputs,), output="out", window_length=20, shift=1, num_shards=5)

    better = describe_plan(plan(options))["recommended"]

    assert better is not None
    assert -(-39_981 // better["windows_per_record"]) >= 5 * 64  # each shard is still a fair sample
    assert plan(replace(options, windows_per_record=better["windows_per_record"])).manifest.bytes == better["bytes"]
    assert plan(replace(options, windows_per_record="auto")).manifest.bytes == better["bytes"]


def test_names_are_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/a.npy", np.zeros(9))
    np.save(tmp_path / "in/b\nc\x1b[2J.npy", np.zeros(1))

    text = format_plan(describe_plan(plan(BuildOptions((f"{tmp_path}/in",), f"{tmp_path}/out", window_length=4))))

    assert "\ntoo short 1 episodes have no window: b\\nc\\x1b[2J.npy\n" in text
