"""Which split gets which steps of which episodes, from options and files on disk to the windows of a dataset."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import BuildHere, SaveEpisodes
from pipeline import BuildOptions, DatasetPlan, plan
from shards import Dataset, EpisodeError, OptionError
from shards.windows import TAILS, Tail

THIRDS = {"train": "0.5", "validation": "0.25", "test": "0.25"}
HALVES = {"train": "0.5", "test": "0.5"}


def plan_of(folder: Path | str, length: int = 4, **options: Any) -> DatasetPlan:
    return plan(BuildOptions(inputs=(str(folder),), output=f"{folder}-out", window_length=length, **options))


def paths(planned: DatasetPlan) -> dict[str, list[str]]:
    """The episodes of each split."""
    return {
        split.name: [planned.episodes.paths[row] for row in split.sections.episodes.tolist()]
        for split in planned.splits
    }


def shares(planned: DatasetPlan) -> list[float]:
    windows = [int(split.windows.sum()) for split in planned.splits]
    return [count / sum(windows) for count in windows]


def save_lengths(save_episodes: SaveEpisodes, folder: Path, lengths: Mapping[str, int]) -> str:
    return save_episodes(folder, {name: np.arange(steps, dtype="i4") for name, steps in lengths.items()})


def write_labels(folder: Path, rows: Mapping[str, Sequence[object]], *columns: str) -> str:
    file = folder / "labels.csv"
    lines = [",".join(["path", *columns]), *(",".join([path, *map(str, cells)]) for path, cells in rows.items())]
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def steps_of(dataset: Dataset) -> Iterator[tuple[str, int, list[int]]]:
    """Of every window its split, its episode and the steps that it really holds."""
    window = dataset.manifest.window
    for name, split in dataset.items():
        where, values = split.provenance(), split[:]
        lengths = values.get("valid", np.full(len(split), window.length))
        for episode, start, valid in zip(
            where["episode"].tolist(), where["start"].tolist(), lengths.tolist(), strict=True
        ):
            yield name, episode, [start + k * window.stride for k in range(valid)]


# Whole episodes and groups, by fractions


def test_episodes_are_dealt_by_their_windows(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    lengths = {f"e{i}": 40 + 10 * i for i in range(10)}
    planned = plan_of(save_lengths(save_episodes, tmp_path / "in", lengths), splits=THIRDS)

    assert sorted(name for names in paths(planned).values() for name in names) == [f"e{i}.npy" for i in range(10)]
    assert shares(planned) == pytest.approx([0.5, 0.25, 0.25], abs=0.02)
    assert planned.groups is None


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(0, 40), min_size=6, max_size=20),
    speakers=st.lists(st.integers(0, 5), min_size=20, max_size=20),
    by_column=st.booleans(),
    split_by=st.sampled_from(["episode", "hash"]),
    seed=st.integers(0, 99),
)
def test_no_group_is_in_two_splits(
    tmp_path_factory: pytest.TempPathFactory,
    save_episodes: SaveEpisodes,
    lengths: list[int],
    speakers: list[int],
    by_column: bool,
    split_by: str,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("groups")
    names = [f"{i:02d}-speaker{speakers[i]}" for i in range(len(lengths))]
    inputs = save_lengths(save_episodes, folder / "in", dict(zip(names, lengths, strict=True)))
    rows = {f"{name}.npy": [speakers[i], i] for i, name in enumerate(names)}
    labels = write_labels(folder, rows, "speaker", "number")
    grouping = {"labels": labels, "group_by": "speaker"} if by_column else {"group_by": "speaker([0-9])"}
    usable = [i for i, steps in enumerate(lengths) if steps >= 4]
    if len({speakers[i] for i in usable}) < 2:
        return
    try:
        planned = plan_of(inputs, splits=HALVES, split_by=split_by, seed=seed, **grouping)
    except EpisodeError as error:
        if split_by != "hash" or "is empty: the hash put none" not in str(error):
            raise
        return

    assert planned.groups == [str(speakers[i]) for i in range(len(lengths))]
    train, test = (set(split.sections.episodes.tolist()) for split in planned.splits)
    assert train | test == set(usable)
    assert not {speakers[i] for i in train} & {speakers[i] for i in test}
    assert planned.manifest.splitting.group_by == grouping["group_by"]


def test_groups_come_as_near_to_the_fractions_as_episodes(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    random = np.random.default_rng(0)
    lengths = {f"s{speaker:02d}/{i}": int(random.integers(100, 200)) for speaker in range(40) for i in range(5)}
    planned = plan_of(save_lengths(save_episodes, tmp_path / "in", lengths), splits=THIRDS, group_by="s[0-9]+")

    assert shares(planned) == pytest.approx([0.5, 0.25, 0.25], abs=0.001)


def test_a_group_column_stays_a_feature_and_needs_a_value(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {"a": 9, "b": 9, "c": 9})
    labels = write_labels(tmp_path, {"a.npy": ["x"], "b.npy": ["y"], "c.npy": ["x"]}, "who")

    dataset = build_here(inputs, tmp_path / "out", window_length=4, labels=labels, group_by="who", splits=HALVES)

    (who,) = [feature for feature in dataset.manifest.features if feature.name == "who"]
    assert who.classes == ("x", "y")
    held = {name: sorted(set(split[:]["who"].tolist())) for name, split in dataset.items()}
    assert sorted(map(tuple, held.values())) == [(0,), (1,)]
    assert "0,a.npy,9,train,0,9,2,x,\n" in (tmp_path / "out/episodes.csv").read_text()
    write_labels(tmp_path, {"a.npy": ["x"], "b.npy": [""], "c.npy": ["x"]}, "who")
    with pytest.raises(EpisodeError, match=r"labels\.csv, line 3: its who is empty; fill it in"):
        plan_of(inputs, labels=labels, group_by="who", splits=HALVES)


def test_a_group_name_goes_into_the_list_of_episodes_whole(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {'say "x", y/1': 9, "b/2": 9, "c/short": 2})

    build_here(inputs, tmp_path / "out", window_length=4, group_by="^[^/]*")

    assert (tmp_path / "out/episodes.csv").read_text().splitlines()[1:] == [
        "0,b/2.npy,9,train,0,9,2,b,",
        "1,c/short.npy,2,,0,0,0,c,shorter than one window",
        '2,"say ""x"", y/1.npy",9,train,0,9,2,"say ""x"", y",',
    ]


def test_an_expression_that_finds_no_group_is_told(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {"s1-a": 9, "b": 9})

    with pytest.raises(EpisodeError, match=r"group_by 's\[0-9\]' finds no group, .* of 1 of 2 episodes:\n  b\.npy\n"):
        plan_of(inputs, group_by="s[0-9]")
    with pytest.raises(OptionError, match=r"group_by '\[' is no regular expression"):
        plan_of(inputs, group_by="[")


def test_a_file_that_is_skipped_needs_no_group(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {"s1-a": 9, "s2-a": 9})
    (tmp_path / "in/nobody.npy").touch()

    planned = plan_of(inputs, group_by="s[0-9]", on_error="skip")

    assert planned.groups == ["", "s1", "s2"]


@pytest.mark.parametrize("split_by", ["episode", "hash", "time"])
def test_episodes_that_are_too_short_or_too_few_are_told(
    tmp_path: Path, save_episodes: SaveEpisodes, split_by: str
) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {"a": 0, "b": 3, "c": 2})
    with pytest.raises(EpisodeError, match="no episode is as long as one window, 4 steps: the longest has 3"):
        plan_of(inputs, split_by=split_by, splits={"a": "0.5", "b": "0.5"})
    with pytest.raises(EpisodeError, match="no episode is as long as one window, 10 steps: the longest has 3"):
        plan_of(inputs, split_by=split_by, splits={"a": "0.5", "b": "0.5"}, stride=3, tail="align")


def test_too_few_episodes_or_groups_for_the_splits_are_told(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {"a1": 0, "b1": 20, "b2": 20})

    with pytest.raises(EpisodeError, match=r"3 splits need as many episodes .*, but there are 2"):
        plan_of(inputs, splits=THIRDS)
    with pytest.raises(EpisodeError, match=r"2 splits need as many groups of episodes .*, but there are 1"):
        plan_of(inputs, splits=HALVES, group_by="[ab]")
    with pytest.raises(EpisodeError, match="split test gets no window: to cut one episode for 3 splits takes 30 steps"):
        plan_of(f"{inputs}/b1.npy", splits=THIRDS, split_by="time", purge=9)
    plan_of(inputs, splits=THIRDS, split_by="time", purge=9)  # two episodes make up for one another


# Splits that are given


def test_splits_are_taken_from_a_column(tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere) -> None:
    names = {"a": "test", "b": "fold2", "c": "train", "d": "fold2", "e": "train"}
    inputs = save_lengths(save_episodes, tmp_path / "in", dict.fromkeys(names, 9) | {"e": 2})
    labels = write_labels(
        tmp_path, {f"{name}.npy": [split, i] for i, (name, split) in enumerate(names.items())}, "fold", "n"
    )
    options = {"labels": labels, "splits_from": "fold"}

    planned = plan_of(inputs, **options)

    assert paths(planned) == {"train": ["c.npy"], "test": ["a.npy"], "fold2": ["b.npy", "d.npy"]}
    assert [(split.name, split.fraction) for split in planned.manifest.splits] == [
        ("train", None),
        ("test", None),
        ("fold2", None),
    ]
    assert planned.manifest.splitting.by == "given"
    assert [feature.name for feature in planned.features] == ["window", "n"]
    with pytest.raises(
        OptionError, match=r"num_shards names 'val', which is none of the splits \['train', 'test', 'fo"
    ):
        plan_of(inputs, num_shards={"val": 2, "train": 1}, **options)
    dataset = build_here(inputs, tmp_path / "out", window_length=4, num_shards={"fold2": 3}, **options)
    assert [(split.name, len(split.shards)) for split in dataset.manifest.splits] == [
        ("train", 1),
        ("test", 1),
        ("fold2", 3),
    ]


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("", r"labels file .*labels\.csv has nothing in column fold for b\.npy: fill it in"),
        ("Train", r"b\.npy has 'Train' as split, by column fold of .*labels\.csv; a split's name must be a lower-case"),
        ("all", r"b\.npy has 'all' as split, by column fold"),
        ("2", r"b\.npy has '2' as split"),
    ],
)
def test_a_column_must_name_a_split_for_every_episode(
    tmp_path: Path, save_episodes: SaveEpisodes, cell: str, words: str
) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {"a": 9, "b": 9})
    labels = write_labels(tmp_path, {"a.npy": ["train"], "b.npy": [cell], "gone.npy": ["-"]}, "fold")

    with pytest.raises(EpisodeError, match=words):
        plan_of(inputs, labels=labels, splits_from="fold")


def test_a_column_of_splits_must_be_there(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {"a": 9})
    labels = write_labels(tmp_path, {"a.npy": ["train"]}, "fold")

    with pytest.raises(OptionError, match=r"labels\.csv has no column 'split'; its columns are: fold"):
        plan_of(inputs, labels=labels, splits_from="split")


def test_an_episode_without_a_row_is_in_no_split(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {"a": 9, "b": 9})
    labels = write_labels(tmp_path, {"b.npy": ["test"]}, "fold")

    assert paths(plan_of(inputs, labels=labels, splits_from="fold", on_error="skip")) == {"test": ["b.npy"]}


def test_splits_are_the_first_folders(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    lengths = {"train/x/a": 9, "test/a": 9, "train/b": 9, "val/a": 9, "odd/a": 9, "odd/b": 1}
    inputs = save_lengths(save_episodes, tmp_path / "in", lengths)

    planned = plan_of(inputs, splits="dirs")

    assert paths(planned) == {
        "train": ["train/b.npy", "train/x/a.npy"],
        "val": ["val/a.npy"],
        "test": ["test/a.npy"],
        "odd": ["odd/a.npy"],
    }
    assert planned.manifest.splitting.by == "given"
    with pytest.raises(
        OptionError, match=r"num_shards names 'dev', which is none of the splits \['train', 'val', 'test'"
    ):
        plan_of(inputs, splits="dirs", num_shards={"dev": 1})
    two = plan(
        BuildOptions(
            inputs=(f"{inputs}/train", f"{inputs}/test"), output=f"{tmp_path}/o", window_length=4, splits="dirs"
        )
    )
    assert paths(two) == {"train": ["train/b.npy", "train/x/a.npy"], "test": ["test/a.npy"]}


def test_a_folder_must_be_able_to_name_a_split(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {"train/a": 9, "Run-1/a": 9})

    with pytest.raises(EpisodeError, match=r"Run-1/a\.npy has 'Run-1' as split, by its folder below .*/in/ "):
        plan_of(inputs, splits="dirs")
    with pytest.raises(EpisodeError, match=r"a\.npy has no split, by its folder below .*/in/train/ "):
        plan_of(f"{inputs}/train", splits="dirs")


def test_a_split_whose_episodes_are_too_short_is_told(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {"train/a": 9, "test/a": 3, "test/b": 0})

    with pytest.raises(EpisodeError, match="split test has no window: all 2 episodes put into it are too short"):
        plan_of(inputs, splits="dirs")


def test_a_group_that_the_given_splits_tear_is_told(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {"train/s1": 9, "test/s1": 9, "test/s2": 9, "train/s3": 9})

    with pytest.raises(
        EpisodeError, match=r"1 groups of episodes are in more than one split .*(?s:.)*'s1' is in train"
    ):
        plan_of(inputs, splits="dirs", group_by="s[0-9]")
    assert paths(plan_of(inputs, splits="dirs", group_by="^[a-z]*"))["train"] == ["train/s1.npy", "train/s3.npy"]


# By hash


def test_a_hash_keeps_episodes_and_groups_where_they_are(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    lengths = {f"s{i % 13}/{i:03d}": 9 for i in range(60)}
    inputs = save_lengths(save_episodes, tmp_path / "in", lengths)
    alone, grouped = (
        {"split_by": "hash", "splits": HALVES},
        {"split_by": "hash", "splits": HALVES, "group_by": "^s[0-9]+"},
    )
    before = [paths(plan_of(inputs, **how)) for how in (alone, grouped)]
    save_lengths(save_episodes, tmp_path / "in", {f"s{i % 20}/{i:03d}": 30 for i in range(60, 200)} | {"s0/000": 99})

    after = [paths(plan_of(inputs, **how)) for how in (alone, grouped)]

    for old, new in zip(before, after, strict=True):
        for split in HALVES:
            assert set(old[split]) < set(new[split])
    assert before[0] != before[1]
    assert plan_of(inputs, **alone).manifest.splitting.by == "hash"
    assert [len(names) for names in paths(plan_of(inputs, splits=HALVES, split_by="hash", seed=1)).values()] != [
        len(names) for names in after[0].values()
    ]


def test_a_hash_has_about_the_fractions(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {f"{i:04d}": 4 for i in range(1000)})

    assert shares(plan_of(inputs, splits=THIRDS, split_by="hash")) == pytest.approx([0.5, 0.25, 0.25], abs=0.05)


# By time


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(0, 90), min_size=1, max_size=5),
    length=st.integers(1, 5),
    shift=st.integers(1, 7),
    stride=st.integers(1, 3),
    tail=st.sampled_from(TAILS),
    per_record=st.sampled_from([1, 3, "auto"]),
    splits=st.sampled_from([HALVES, THIRDS, {"train": "0.9", "test": "0.1"}]),
    purge=st.integers(0, 9),
)
def test_splits_of_an_episode_share_no_step_and_keep_their_distance(
    tmp_path_factory: pytest.TempPathFactory,
    save_episodes: SaveEpisodes,
    build_here: BuildHere,
    lengths: list[int],
    length: int,
    shift: int,
    stride: int,
    tail: Tail,
    per_record: int | str,
    splits: dict[str, str],
    purge: int,
) -> None:
    if max(lengths) < len(splits) * ((length - 1) * stride + 1 + purge):
        return
    folder = tmp_path_factory.mktemp("time")
    inputs = save_lengths(save_episodes, folder / "in", {f"e{i}": steps for i, steps in enumerate(lengths)})
    dataset = build_here(
        inputs,
        folder / "out",
        window_length=length,
        shift=shift,
        stride=stride,
        tail=tail,
        windows_per_record=per_record,
        splits=splits,
        split_by="time",
        purge=purge,
    )

    reach: dict[tuple[int, str], tuple[int, int]] = {}
    for name, episode, steps in steps_of(dataset):
        low, high = reach.get((episode, name), (steps[0], steps[-1]))
        reach[episode, name] = min(low, steps[0]), max(high, steps[-1])
        assert steps[-1] < lengths[episode]
    for (episode, name), (low, _) in reach.items():
        for earlier in list(splits)[: list(splits).index(name)]:
            if (episode, earlier) in reach:
                assert reach[episode, earlier][1] + purge < low
    assert {name for _, name in reach} == set(splits)
    for split in dataset.values():  # and the values are those of the steps
        where, values = split.provenance(), split[:]
        real = values.get("valid", np.full(len(split), length))
        k = np.arange(length)
        expected = (where["start"][:, None] + k * stride) * (k < real[:, None])
        assert np.array_equal(values["window"], expected)


@pytest.mark.parametrize("purge", [0, 5])
def test_time_is_cut_at_the_fractions(tmp_path: Path, save_episodes: SaveEpisodes, purge: int) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {f"e{i}": 900 + 10 * i for i in range(20)})
    planned = plan_of(inputs, splits=THIRDS, split_by="time", shift=2, purge=purge)

    assert shares(planned) == pytest.approx([0.5, 0.25, 0.25], abs=0.001)
    assert [len(split.sections.episodes) for split in planned.splits] == [20, 20, 20]
    assert planned.source.uncovered <= 20 * 2 * (purge + 2)
    splitting = planned.manifest.splitting
    assert (splitting.by, splitting.purge) == ("time", purge)


def test_the_list_of_episodes_has_a_row_for_each_section(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    inputs = save_lengths(save_episodes, tmp_path / "in", {"a": 40, "b": 3, "c": 10})

    dataset = build_here(
        inputs, tmp_path / "out", window_length=4, splits={"test": "0.5", "train": "0.5"}, split_by="time", purge=2
    )

    assert (tmp_path / "out/episodes.csv").read_text().splitlines() == [
        "episode,path,steps,split,begin,end,windows,group,left_out",
        "0,a.npy,40,test,0,20,5,,",
        "0,a.npy,40,train,22,40,4,,",
        "1,b.npy,3,,0,0,0,,shorter than one window",
        "2,c.npy,10,test,0,4,1,,",
        "2,c.npy,10,train,6,10,1,,",
    ]
    source = dataset.manifest.source
    assert (source.episodes, source.short, source.steps, source.uncovered) == (2, 1, 50, 50 - 11 * 4)
    assert [split.episodes for split in dataset.manifest.splits] == [2, 2]
    assert dataset.manifest.statistics[0].total.count == 5 * 4  # those of train alone
