import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import SaveEpisodes
from pipeline.episodes import Episodes, attach_labels, can_store, cast_episodes, describe_array, survey
from pipeline.inputs import find_episodes
from pipeline.labels import Labels
from pipeline.source import SourceArray
from shards import EpisodeError, Feature, OptionError
from shards.features import DTYPES


def survey_folder(folder: Path | str, **options: Any) -> Episodes:
    return survey(find_episodes([str(folder)]), **options)


def big_endian(table: Episodes, row: int) -> bool:
    return table.forms[table.form[row]][0].fields[0].big_endian


def fortran_order(table: Episodes, row: int) -> bool:
    return table.forms[table.form[row]][0].fortran_order


def test_episodes_are_a_table_in_the_order_of_their_paths(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    folder = save_episodes(
        tmp_path / "in",
        {
            "b": np.zeros((7, 2, 3), ">f4"),
            "a/z": np.zeros((0, 2, 3), "f4"),
            "c": np.zeros((9, 2, 3), "f4", order="F"),
        },
    )
    with (tmp_path / "in/d.npy").open("wb") as file:
        np.lib.format.write_array(file, np.zeros((1, 2, 3), "f4"), (2, 0))

    table = survey_folder(folder)

    assert table.root == f"{folder}/"
    assert table.paths == ("a/z.npy", "b.npy", "c.npy", "d.npy")
    assert table.arrays == (SourceArray("window", "float32", (2, 3)),)
    assert table.step_bytes == 24
    assert table.steps.tolist() == [0, 7, 9, 1]
    assert table.offsets.tolist() == [[128], [128], [128], [128]]
    assert [big_endian(table, i) for i in range(4)] == [False, True, False, False]
    assert [fortran_order(table, i) for i in range(4)] == [False, False, True, False]
    assert len(table.forms) == 3
    assert (table.labels, table.unmatched) == ((), ())
    assert table.problems == {}
    assert (table.steps.dtype, table.offsets.dtype) == (np.int64, np.int64)


def test_episodes_of_one_number_a_step_have_the_step_shape_of_a_number(
    tmp_path: Path, save_episodes: SaveEpisodes
) -> None:
    (flat,) = survey_folder(save_episodes(tmp_path, [np.zeros(5, "i2")])).arrays
    (column,) = survey_folder(save_episodes(tmp_path, [np.zeros((5, 1), "i2")])).arrays

    assert (flat.shape, column.shape) == ((), (1,))


def test_all_bad_files_are_told_at_once(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    folder = save_episodes(tmp_path / "in", {"good": np.zeros((8, 2), "f4"), "words": np.array(["a", "b"])})
    for name in ("cut", "long", "twice"):
        np.save(tmp_path / f"in/{name}.npy", np.zeros((8, 2), "f4"))
    os.truncate(tmp_path / "in/cut.npy", 100)
    os.truncate(tmp_path / "in/long.npy", 128 + 63)
    with (tmp_path / "in/twice.npy").open("ab") as file:
        np.save(file, np.zeros(2))
    (tmp_path / "in/empty.npy").touch()
    (tmp_path / "in/pipe.npy").symlink_to("nowhere")

    with pytest.raises(EpisodeError) as caught:
        survey_folder(folder)

    assert str(caught.value).splitlines() == [
        "6 of 7 episode files cannot be used:",
        f"  {folder}/cut.npy ends within its header",
        f"  {folder}/empty.npy is empty",
        f"  {folder}/long.npy is cut short: 191 bytes, where its header promises 192",
        f"  {folder}/pipe.npy is no file that can be read (a broken link, a pipe or a device)",
        f"  {folder}/twice.npy has 144 bytes after its array (several arrays saved into one file?)",
        f"  {folder}/words.npy holds text (dtype <U1), which cannot be windows",
        "Mend or remove them, or leave them out with --on_error skip.",
    ]


def test_a_pipe_is_not_waited_for(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    save_episodes(tmp_path, [np.zeros(3)])
    os.mkfifo(tmp_path / "pipe.npy")

    with pytest.raises(EpisodeError, match=r"pipe\.npy is no file that can be read"):
        survey_folder(tmp_path)


def test_of_many_bad_files_fifty_are_named(tmp_path: Path) -> None:
    for i in range(60):
        (tmp_path / f"{i:02d}.npy").touch()

    with pytest.raises(
        EpisodeError, match=r"60 of 60 episode files .*(?s:.*)49\.npy is empty\n  and 10 more\n"
    ) as caught:
        survey_folder(tmp_path)
    assert "50.npy" not in str(caught.value)


def test_kinds_that_disagree_are_counted_with_two_examples_each(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    save_episodes(tmp_path / "f4", [np.zeros((9, 3), "f4")] * 4)
    save_episodes(tmp_path / "f8", [np.zeros((9, 3), "f8")] * 2)
    save_episodes(tmp_path / "wide", [np.zeros((9, 4), "f4")] * 3)
    save_episodes(tmp_path / "flat", [np.zeros(9, "f4")])

    with pytest.raises(EpisodeError) as caught:
        survey_folder(tmp_path)

    assert str(caught.value).splitlines() == [
        "episodes must agree in arrays, dtypes and step shapes, but there are 4 kinds:",
        "  4 of float32 with shape (steps, 3), such as f4/e000.npy, f4/e001.npy",
        "  3 of float32 with shape (steps, 4), such as wide/e000.npy, wide/e001.npy",
        "  2 of float64 with shape (steps, 3), such as f8/e000.npy, f8/e001.npy",
        "  1 of float32 with shape (steps,), such as flat/e000.npy",
        "Mend or remove them, or leave them out with --on_error skip.",
    ]


def test_bad_files_and_kinds_that_disagree_are_told_together(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    save_episodes(tmp_path, [np.zeros((9, 3), "f4"), np.zeros((9, 3), "f8")])
    (tmp_path / "empty.npy").touch()

    with pytest.raises(EpisodeError, match=r"(?s)1 of 3 .*empty\.npy is empty.*there are 2 kinds"):
        survey_folder(tmp_path)


def test_byte_order_and_memory_order_may_differ(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    arrays = [np.zeros((4, 3), "<f8"), np.zeros((5, 3), ">f8"), np.zeros((6, 3), ">f8", order="F")]

    assert survey_folder(save_episodes(tmp_path, arrays)).steps.tolist() == [4, 5, 6]


def test_skipping_keeps_the_largest_group_and_says_why_the_rest_is_left_out(
    tmp_path: Path, save_episodes: SaveEpisodes
) -> None:
    save_episodes(
        tmp_path,
        {
            "a": np.zeros((9, 4), "f8"),
            "b": np.zeros((5, 3), "f4"),
            "c": np.zeros((6, 3), ">f4", order="F"),
            "d": np.zeros((7,), "f4"),
        },
    )
    (tmp_path / "e.npy").touch()

    table = survey_folder(tmp_path, on_error="skip")

    assert table.arrays == (SourceArray("window", "float32", (3,)),)
    assert table.paths == ("a.npy", "b.npy", "c.npy", "d.npy", "e.npy")
    assert table.steps.tolist() == [0, 5, 6, 0, 0]
    assert table.offsets[1:3].tolist() == [[128], [128]]
    assert [big_endian(table, i) for i in (1, 2)] == [False, True]
    assert [fortran_order(table, i) for i in (1, 2)] == [False, True]
    assert table.form[4] == -1
    assert table.problems == {
        0: "is float64 with shape (steps, 4) where most episodes are float32 with shape (steps, 3)",
        3: "is float32 with shape (steps,) where most episodes are float32 with shape (steps, 3)",
        4: "is empty",
    }


def test_of_two_groups_as_large_the_first_by_path_is_kept(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    save_episodes(
        tmp_path, {"a": np.zeros(3, "i4"), "b": np.zeros(3, "f4"), "c": np.zeros(3, "f4"), "d": np.zeros(3, "i4")}
    )

    assert survey_folder(tmp_path, on_error="skip").arrays == (SourceArray("window", "int32", ()),)


def test_skipping_everything_leaves_no_episode(tmp_path: Path) -> None:
    (tmp_path / "a.npy").touch()

    with pytest.raises(EpisodeError, match=r"(?s)a\.npy is empty\nNo episode is left"):
        survey_folder(tmp_path, on_error="skip")


def test_a_long_header_is_read_whole(tmp_path: Path) -> None:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}" + b" " * 50_000 + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(12))

    table = survey_folder(tmp_path)

    assert (table.steps.tolist(), table.offsets.tolist()) == ([3], [[10 + len(text)]])


@pytest.mark.parametrize("shape", ["(0x" + "f" * 20_000 + ",)", "(3," + "9223372036854775807," * 3000 + ")"])
def test_a_hostile_header_is_one_bad_file_among_others(tmp_path: Path, shape: str, save_episodes: SaveEpisodes) -> None:
    save_episodes(tmp_path, [np.zeros(3, "f4")])
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".encode()
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text)

    table = survey_folder(tmp_path, on_error="skip")

    assert table.paths == ("bad.npy", "e000.npy")
    assert list(table.problems) == [0]
    assert len(table.problems[0]) < 300


def test_an_episode_of_too_many_steps_is_refused(tmp_path: Path) -> None:
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (4398046511104,)}\n"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    (tmp_path / "a.npy").write_bytes(header)
    os.truncate(tmp_path / "a.npy", len(header) + 2**42)  # zeros that take no room

    with pytest.raises(EpisodeError, match=r"a\.npy has 4398046511104 steps; 4398046511104 are too many"):
        survey_folder(tmp_path)


def test_many_files_are_surveyed_in_order(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    folder = save_episodes(tmp_path, [np.zeros(i, "u1") for i in range(300)])

    assert survey_folder(folder).steps.tolist() == list(range(300))


# Several arrays an episode

ARM = np.dtype([("action", "<i2"), ("pose", ">f4", (2, 3))])


def save_npz(folder: Path, name: str, compressed: bool = False, **arrays: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (np.savez_compressed if compressed else np.savez)(folder / f"{name}.npz", **arrays)


def test_arrays_of_archives_and_fields_of_arrays_are_the_same_features(
    tmp_path: Path, save_episodes: SaveEpisodes
) -> None:
    save_npz(tmp_path, "a", pose=np.zeros((7, 2, 3), "f4"), action=np.zeros(7, ">i2"))
    save_npz(tmp_path, "b", compressed=True, action=np.zeros(8, "i2"), pose=np.zeros((8, 2, 3), "f4", order="F"))
    save_episodes(tmp_path, {"c": np.zeros(9, ARM)})

    table = survey_folder(tmp_path)

    assert table.paths == ("a.npz", "b.npz", "c.npy")
    assert table.arrays == (SourceArray("action", "int16", ()), SourceArray("pose", "float32", (2, 3)))
    assert table.steps.tolist() == [7, 8, 9]
    assert table.form.tolist() == [0, 1, 2]
    assert table.step_bytes == 2 + 24
    assert table.offsets.shape == (3, 2)
    data = (tmp_path / "a.npz").read_bytes()
    assert [data[offset - 10 : offset].strip() for offset in table.offsets[0].tolist()] == [b"", b""]  # after headers
    assert (table.offsets[2].tolist()[1:], len(table.forms[2])) == ([0], 1)  # a file's one array, with two fields


def test_a_value_without_an_axis_is_one_of_the_episode(tmp_path: Path) -> None:
    save_npz(tmp_path, "a", x=np.zeros((5, 1), "f4"), reward=np.float64(1), won=np.bool_(True))

    table = survey_folder(tmp_path)

    assert table.arrays == (
        SourceArray("reward", "float64", None),
        SourceArray("won", "bool", None),
        SourceArray("x", "float32", (1,)),
    )
    assert [describe_array(array, named=True) for array in table.arrays] == [
        "reward: one float64 an episode",
        "won: one bool an episode",
        "x: float32 with shape (steps, 1)",
    ]
    assert table.step_bytes == 4


def test_only_what_is_picked_is_looked_at_and_comes_in_that_order(tmp_path: Path) -> None:
    save_npz(tmp_path, "a", x=np.zeros(5), y=np.zeros((5, 2)), names=np.array(["a", "b"]), longer=np.zeros(9))
    save_npz(tmp_path, "b", x=np.zeros(6), y=np.zeros((6, 2)), more=np.zeros(6))

    table = survey_folder(tmp_path, picked=("y", "x"))

    assert table.arrays == (SourceArray("y", "float64", (2,)), SourceArray("x", "float64", ()))
    assert table.steps.tolist() == [5, 6]


def test_fields_may_be_picked(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    folder = save_episodes(tmp_path, [np.zeros(9, ARM)])

    assert survey_folder(folder, picked=("pose",)).arrays == (SourceArray("pose", "float32", (2, 3)),)
    assert survey_folder(folder, picked=("pose", "action")).arrays[1] == SourceArray("action", "int16", ())


def test_an_array_that_is_missing_is_told_with_its_file(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    save_npz(tmp_path, "a", x=np.zeros(5), y=np.zeros(5))
    save_npz(tmp_path, "b", x=np.zeros(5))
    save_npz(tmp_path, "c", x=np.zeros(5), y=np.zeros(4))
    save_npz(tmp_path, "d", x=np.zeros(5), y=np.array(["one", "two", "three", "four", "five"]))
    save_npz(tmp_path, "e", x=np.float32(5), y=np.float32(5))
    save_episodes(tmp_path, {"f": np.zeros(5), "g": np.zeros(5, ARM)})

    with pytest.raises(EpisodeError) as caught:
        survey_folder(tmp_path, picked=("x", "y"))

    assert str(caught.value).splitlines() == [
        "6 of 7 episode files cannot be used:",
        f"  {tmp_path}/b.npz has no array 'y'; it holds x",
        f"  {tmp_path}/c.npz has arrays of different lengths: x has 5 steps, y 4; name those that go together with"
        " --features",
        f"  {tmp_path}/d.npz has an array 'y' that holds text (dtype <U5), which cannot be windows",
        f"  {tmp_path}/e.npz has no array along time, only single values: x, y",
        f"  {tmp_path}/f.npy has no array 'x'; it holds window",
        f"  {tmp_path}/g.npy has no array 'x'; it holds action, pose",
        "Mend or remove them, or leave them out with --on_error skip.",
    ]
    table = survey_folder(tmp_path, picked=("x", "y"), on_error="skip")
    assert table.steps.tolist() == [5, 0, 0, 0, 0, 0, 0]
    assert list(table.problems) == [1, 2, 3, 4, 5, 6]


def test_files_of_other_arrays_are_other_kinds(tmp_path: Path) -> None:
    for name in "ab":
        save_npz(tmp_path, name, x=np.zeros(5), y=np.zeros(5))
    save_npz(tmp_path, "c", x=np.zeros(5))
    save_npz(tmp_path, "d", x=np.zeros(5), y=np.float64(1))

    with pytest.raises(EpisodeError) as caught:
        survey_folder(tmp_path)

    assert str(caught.value).splitlines()[1:4] == [
        "  2 of x: float64 with shape (steps,); y: float64 with shape (steps,), such as a.npz, b.npz",
        "  1 of x: float64 with shape (steps,), such as c.npz",
        "  1 of x: float64 with shape (steps,); y: one float64 an episode, such as d.npz",
    ]
    table = survey_folder(tmp_path, on_error="skip")
    assert table.steps.tolist() == [5, 5, 0, 0]
    assert table.problems[2] == (
        "is x: float64 with shape (steps,) where most episodes are x: float64 with shape (steps,); y: float64 with"
        " shape (steps,)"
    )
    assert survey_folder(tmp_path, picked=["x"]).steps.tolist() == [5, 5, 5, 5]


# Casts


def test_files_of_several_dtypes_agree_when_they_are_stored_as_one(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    save_episodes(tmp_path, [np.zeros(5, "f8"), np.zeros(6, ">f4"), np.zeros(7, "i2")])

    table = survey_folder(tmp_path, casts={"window": "float32"})

    assert table.arrays == (SourceArray("window", "float32", ()),)
    assert table.steps.tolist() == [5, 6, 7]
    assert table.step_bytes == 4
    assert cast_episodes(table, {"window": "float32"}) == table


@pytest.mark.parametrize(
    ("source", "target"),
    [("float32", "int32"), ("bfloat16", "int8"), ("complex64", "float64"), ("complex64", "int8"), ("int8", "bool")],
)
def test_a_cast_to_another_kind_is_refused(tmp_path: Path, source: str, target: str) -> None:
    save_npz(tmp_path, "a", x=np.zeros((5, 2), "i1"), y=np.zeros(5, "i1"))
    table = survey_folder(tmp_path)
    form = table.forms[0]
    fields = (form[1].fields[0]._replace(dtype=source),)
    table = replace(table, forms=((form[0], form[1]._replace(fields=fields)),))

    with pytest.raises(OptionError, match=f"dtype cannot store y, which is {source}, as {target}: it is of another"):
        cast_episodes(table, {"x": "int16", "y": target})


def test_a_cast_is_checked_for_every_file_that_is_used(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    save_episodes(tmp_path, [np.zeros(5, "i4"), np.zeros(5, "i2"), np.zeros(5, "f4")])
    casts = {"window": "int16"}

    with pytest.raises(OptionError, match="dtype cannot store window, which is float32, as int16"):
        cast_episodes(survey_folder(tmp_path, casts=casts), casts)
    np.save(tmp_path / "e002.npy", np.zeros((5, 2), "f4"))
    assert cast_episodes(survey_folder(tmp_path, casts=casts, on_error="skip"), casts).steps.tolist() == [5, 5, 0]


def test_a_cast_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    save_npz(tmp_path, "a", x=np.zeros(5), y=np.zeros(5))

    with pytest.raises(OptionError, match="dtype names z, but the features are x, y"):
        cast_episodes(survey_folder(tmp_path), {"z": "int8"})


def test_dtypes_that_may_be_stored_as_another_are_of_its_kind_or_a_simpler_one() -> None:
    kinds = [
        ["bool"],
        [d for d in DTYPES if "int" in d],
        [d for d in DTYPES if "loat" in d],
        ["complex64", "complex128"],
    ]
    assert sum(map(len, kinds)) == len(DTYPES)

    for i, sources in enumerate(kinds):
        for j, targets in enumerate(kinds):
            assert {can_store(source, target) for source in sources for target in targets} == {i <= j}


# Labels


def labels_of(paths: Sequence[str], **columns: Sequence[str]) -> Labels:
    rows = {path: row for row, path in enumerate(paths)}
    columns = {name: tuple(cells) for name, cells in columns.items()}
    return Labels("some/labels.csv", rows, columns, tuple(range(2, len(paths) + 2)))


def test_labels_are_attached_by_path(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    table = survey_folder(save_episodes(tmp_path, {"a/x": np.zeros(5), "b": np.zeros(5), "c": np.zeros(5)}))
    labels = labels_of(["c.npy", "z.npy", "a/x.npy", "b.npy"], reward=["1.5", "?", "2", "-1"], fold=["x", "", "x", "y"])

    table = attach_labels(table, labels, ("fold",), "fail")

    (reward,) = table.labels
    assert (reward.feature, reward.values) == (Feature("reward", "float64", ()), (2.0, -1.0, 1.5))
    assert table.unmatched == ("z.npy",)
    assert table.problems == {}


def test_episodes_without_a_row_are_told_or_skipped(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    save_episodes(tmp_path, {name: np.zeros(5) for name in "abcd"})
    (tmp_path / "e.npy").touch()
    table = survey_folder(tmp_path, on_error="skip")
    labels = labels_of(["b.npy", "d.npy"], kind=["x", "y"])

    with pytest.raises(EpisodeError) as caught:
        attach_labels(table, labels, (), "fail")
    assert str(caught.value).splitlines() == [
        f"2 of 5 episodes have no row in some/labels.csv, whose paths are relative to {tmp_path}/:",
        "  a.npy",
        "  c.npy",
        "Add the rows, or leave these episodes out with --on_error skip.",
    ]
    skipped = attach_labels(table, labels, (), "skip")
    assert skipped.steps.tolist() == [0, 5, 0, 5, 0]
    assert skipped.problems == {0: "has no row in labels.csv", 2: "has no row in labels.csv", 4: "is empty"}
    assert skipped.labels[0].feature.classes == ("x", "y")
    assert skipped.labels[0].values == (0, 0, 0, 1, 0)


def test_of_many_episodes_without_a_row_fifty_are_named(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    table = survey_folder(save_episodes(tmp_path, [np.zeros(2)] * 61))

    with pytest.raises(EpisodeError, match=r"(?s)60 of 61 .*  e050\.npy\n  and 10 more\n") as caught:
        attach_labels(table, labels_of(["e000.npy"], x=["1"]), (), "fail")
    assert "e051" not in str(caught.value)


def test_skipping_every_episode_is_an_error(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    table = survey_folder(save_episodes(tmp_path, [np.zeros(5)] * 2))

    with pytest.raises(EpisodeError, match=r"2 of 2 episodes have no row in some/labels\.csv"):
        attach_labels(table, labels_of(["in/e000.npy"], x=["1"]), (), "skip")


def test_a_label_of_an_episode_that_is_left_out_decides_nothing(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    save_episodes(tmp_path, {"a": np.zeros(5), "b": np.zeros(5)})
    (tmp_path / "c.npy").touch()

    table = attach_labels(
        survey_folder(tmp_path, on_error="skip"),
        labels_of(["a.npy", "b.npy", "c.npy"], x=["1", "2", "unknown"]),
        (),
        "skip",
    )

    assert table.labels[0].feature == Feature("x", "int64", ())
    assert table.labels[0].values == (1, 2, 0)


def test_a_label_that_is_called_as_an_array_is_refused(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    table = survey_folder(save_episodes(tmp_path, [np.zeros(5)]))
    labels = labels_of(["e000.npy"], y=["1"], window=["2"])

    with pytest.raises(
        OptionError, match=r"window is a column of some/labels\.csv and an array of the episodes: rename"
    ):
        attach_labels(table, labels, (), "fail")
    assert len(attach_labels(table, labels, ("window",), "fail").labels) == 1


def test_labels_may_be_stored_as_other_dtypes(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    table = survey_folder(save_episodes(tmp_path, [np.zeros(5)] * 2))
    labels = labels_of(["e000.npy", "e001.npy"], n=["1", "2"], x=["1", "0.5"], word=["a", "b"])
    table = attach_labels(table, labels, (), "fail")

    cast = cast_episodes(table, {"n": "float32", "x": "float16", "word": "int64"})

    assert [(column.feature.name, column.feature.dtype) for column in cast.labels] == [
        ("n", "float32"),
        ("x", "float16"),
        ("word", "int64"),
    ]
    assert [column.values for column in cast.labels] == [(1, 2), (1.0, 0.5), (0, 1)]
    with pytest.raises(OptionError, match="dtype cannot store x, which is float64, as int64: it is of another kind"):
        cast_episodes(table, {"x": "int64"})
    with pytest.raises(OptionError, match="dtype cannot store word as int8: numbers of classes are int64"):
        cast_episodes(table, {"word": "int8"})
    with pytest.raises(OptionError, match="dtype names reward, but the features are n, window, word, x"):
        cast_episodes(table, {"reward": "int8"})


def test_of_many_kinds_fifty_are_named(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    save_episodes(tmp_path, [np.zeros((5, width), "u1") for width in range(1, 61)])

    with pytest.raises(EpisodeError) as caught:
        survey_folder(tmp_path)

    lines = str(caught.value).splitlines()
    assert lines[0] == "episodes must agree in arrays, dtypes and step shapes, but there are 60 kinds:"
    assert (len(lines), lines[-2]) == (53, "  and 10 more")


def test_a_kind_of_many_arrays_is_told_in_short(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    fields = np.dtype([(f"channel_{i:03d}", "f4") for i in range(999)])
    save_episodes(tmp_path, {"a": np.zeros(5, fields), "b": np.zeros(5, "f4"), "c": np.zeros(5, "f4")})

    table = survey_folder(tmp_path, on_error="skip")

    assert table.problems[0].startswith("is channel_000: float32 with shape (steps,); channel_001: float32")
    assert table.problems[0].endswith("... (999 arrays) where most episodes are float32 with shape (steps,)")
    assert len(table.problems[0]) < 600


def test_a_name_cannot_pass_for_a_line_of_the_message(tmp_path: Path) -> None:
    (tmp_path / "a\n  b.npy is fine\x1b[2J.npy").touch()

    with pytest.raises(EpisodeError) as caught:
        survey_folder(tmp_path)

    assert str(caught.value).splitlines()[1] == f"  {tmp_path}/a\\n  b.npy is fine\\x1b[2J.npy is empty"
