import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import SaveEpisodes
from pipeline.episodes import Episodes, survey
from pipeline.inputs import find_episodes
from pipeline.source import SourceArray
from shards import EpisodeError


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
        "episodes must agree in dtype and step shape, but there are 4 kinds:",
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
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)

    with pytest.raises(EpisodeError, match=r"a\.npy has 4398046511104 steps; 4398046511104 are too many"):
        survey_folder(tmp_path)


def test_many_files_are_surveyed_in_order(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    folder = save_episodes(tmp_path, [np.zeros(i, "u1") for i in range(300)])

    assert survey_folder(folder).steps.tolist() == list(range(300))
