import os
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.files import file_state
from pipeline.inputs import EpisodeFile, find_episodes, glob_to_regex
from shards import EpisodeError
from shards.files import FileState


def make(folder: Path, *names: str) -> None:
    """Make files of these names; the content of each is its name."""
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.fsencode(name))


def found(*inputs: Path | str) -> list[str]:
    """The paths of the episodes of some inputs, below their common folder."""
    return [file.path for file in find_episodes([str(text) for text in inputs])]


def test_a_folder_stands_for_every_npy_and_npz_file_below_it(tmp_path: Path) -> None:
    make(tmp_path, "b.npy", "a.npy", "deep/er/c.npy", "deep/d.npz", "notes.txt", "a.npy.bak", "x.npz", "npy", "y.NPZ")

    assert found(tmp_path) == ["a.npy", "b.npy", "deep/d.npz", "deep/er/c.npy", "x.npz"]
    assert found(f"{tmp_path}/") == found(tmp_path)


def test_files_come_with_their_root_and_state(tmp_path: Path) -> None:
    make(tmp_path, "a.npy", "deep/bcd.npy")

    for name in ("a.npy", "deep/bcd.npy"):
        os.utime(tmp_path / name, ns=(1, 1_700_000_000_123_456_789))

    assert find_episodes([str(tmp_path)]) == [
        EpisodeFile(f"{tmp_path}/", "a.npy", FileState(5, 1_700_000_000_123_456_789)),
        EpisodeFile(f"{tmp_path}/", "deep/bcd.npy", FileState(12, 1_700_000_000_123_456_789)),
    ]


def test_paths_are_sorted_whole_not_folder_by_folder(tmp_path: Path) -> None:
    make(tmp_path, "a/z.npy", "a.npy", "a-b.npy", "a0.npy", "B.npy")

    assert found(tmp_path) == ["B.npy", "a-b.npy", "a.npy", "a/z.npy", "a0.npy"]


def test_a_relative_input_is_found_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "in/a.npy")
    monkeypatch.chdir(tmp_path / "in")

    for text in (".", "a.npy", "*.npy", "../in", "../in/./*.npy"):
        assert find_episodes([text]) == [EpisodeFile(f"{tmp_path}/in/", "a.npy", file_state(f"{tmp_path}/in/a.npy"))]


def test_a_single_file_may_have_any_name(tmp_path: Path) -> None:
    make(tmp_path, "episode.dat")

    (file,) = find_episodes([str(tmp_path / "episode.dat")])
    assert (file.root, file.path, file.state.size) == (f"{tmp_path}/", "episode.dat", 11)


def test_a_star_stays_within_a_folder(tmp_path: Path) -> None:
    make(tmp_path, "a.npy", "b/c.npy", "b/d/e.npy", "bb/c.npy")

    assert found(tmp_path / "*.npy") == ["a.npy"]
    assert found(tmp_path / "*/*.npy") == ["b/c.npy", "bb/c.npy"]
    assert found(tmp_path / "b*/c.npy") == ["b/c.npy", "bb/c.npy"]
    assert found(tmp_path / "?/c.npy") == ["b/c.npy"]


def test_two_stars_cross_any_number_of_folders(tmp_path: Path) -> None:
    make(tmp_path, "a.npy", "b/a.npy", "b/c/a.npy", "b/c/z.npy", "b/ca.npy", "ba.npy")

    assert found(tmp_path / "**/a.npy") == ["a.npy", "b/a.npy", "b/c/a.npy"]
    assert found(tmp_path / "b/**/a.npy") == ["a.npy", "c/a.npy"]  # the root is the folder before the first wildcard
    assert found(tmp_path / "**/c/*.npy") == ["b/c/a.npy", "b/c/z.npy"]
    assert found(tmp_path / "**") == ["a.npy", "b/a.npy", "b/c/a.npy", "b/c/z.npy", "b/ca.npy", "ba.npy"]


def test_a_set_of_characters_matches_one_of_them(tmp_path: Path) -> None:
    make(tmp_path, "run1.npy", "run2.npy", "run3.npy", "run-.npy", "run/.npy", "run].npy", "run^.npy")

    assert found(tmp_path / "run[12].npy") == ["run1.npy", "run2.npy"]
    assert found(tmp_path / "run[1-3].npy") == ["run1.npy", "run2.npy", "run3.npy"]
    assert found(tmp_path / "run[^1].npy") == ["run1.npy", "run^.npy"]
    assert found(tmp_path / "run[]1].npy") == ["run1.npy", "run].npy"]
    assert found(tmp_path / "run[!123].npy") == ["run-.npy", "run].npy", "run^.npy"]  # run/.npy is in a folder


def test_a_file_may_be_called_like_a_glob(tmp_path: Path) -> None:
    make(tmp_path, "run[1].npy", "run1.npy", "what?.npy", "whatx.npy", "in[2]/a.npy", "in2/b.npy")

    assert found(tmp_path / "run[1].npy") == ["run[1].npy"]
    assert found(tmp_path / "what?.npy") == ["what?.npy"]
    assert found(tmp_path / "in[2]") == ["a.npy"]
    assert found(tmp_path / "run[[]1].npy") == ["run[1].npy"]


@pytest.mark.parametrize("glob", ["x[].npy", "x[!].npy", "x[*.npy", "x[z-a]*.npy", "x(*.npy", "x\\*.npy", "x{*.npy"])
def test_a_glob_that_could_be_no_regular_expression_matches_nothing(tmp_path: Path, glob: str) -> None:
    make(tmp_path, "a.npy")

    with pytest.raises(EpisodeError, match=re.escape(glob.replace("\\", "\\\\")) + r"' matches no \.npy or \.npz file"):
        found(tmp_path / glob)


@settings(max_examples=300, deadline=None)
@given(
    pattern=st.text("ab*?[]!-^\\.|&~", max_size=8).filter(lambda text: "**" not in text),
    text=st.text("ab[]!-^\\.|&~", max_size=5),
)
def test_within_a_folder_globs_are_those_of_the_shell(pattern: str, text: str) -> None:
    assert bool(re.fullmatch(glob_to_regex(pattern), text)) == fnmatchcase(text, pattern)


def test_inputs_share_the_folder_that_holds_them_all(tmp_path: Path) -> None:
    make(tmp_path, "day/1/a.npy", "day/12/b.npy", "night/c.npy")

    assert found(tmp_path / "day/1", tmp_path / "day/12") == ["1/a.npy", "12/b.npy"]
    assert found(tmp_path / "night", tmp_path / "day/1/a.npy") == ["day/1/a.npy", "night/c.npy"]
    assert found(tmp_path / "day", tmp_path / "day/1") == ["1/a.npy", "12/b.npy"]
    assert find_episodes([str(tmp_path / "day/1"), str(tmp_path / "day/12")])[0].root == f"{tmp_path}/day/"


def test_the_order_of_inputs_does_not_matter(tmp_path: Path) -> None:
    make(tmp_path, "a/1.npy", "b/2.npy", "c/3.npy")
    inputs = [str(tmp_path / name) for name in ("a", "b/*.npy", "c/3.npy")]

    assert find_episodes(inputs) == find_episodes(inputs[::-1])


def test_a_file_that_two_inputs_match_comes_once(tmp_path: Path) -> None:
    make(tmp_path, "a.npy", "b.npy")

    assert found(tmp_path, tmp_path / "*.npy", tmp_path / "a.npy", f"{tmp_path}/./a.npy") == ["a.npy", "b.npy"]


def test_the_root_does_not_depend_on_what_a_glob_matches(tmp_path: Path) -> None:
    make(tmp_path, "x/a.npy", "y.txt")

    assert found(tmp_path / "*/*.npy") == ["x/a.npy"]
    assert found(tmp_path / "**/*.npy") == ["x/a.npy"]


def test_links_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    make(tmp_path, "in/a.npy", "in/deep/b.npy", "elsewhere/c.npy")
    (tmp_path / "in/loop").symlink_to(tmp_path / "in")
    (tmp_path / "in/deep/up").symlink_to("..")
    (tmp_path / "in/other").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/link.npy").symlink_to(tmp_path / "elsewhere/d")
    make(tmp_path, "elsewhere/d")

    assert found(tmp_path / "in") == ["a.npy", "deep/b.npy", "link.npy", "other/c.npy"]
    assert found(tmp_path / "in/**/*.npy") == found(tmp_path / "in")


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_one_file_of_two_names_is_refused(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    make(tmp_path, "in/a.npy", "in/b.npy")
    link(tmp_path / "in/z.npy", tmp_path / "in/a.npy")

    with pytest.raises(EpisodeError, match=r"/in/a\.npy and .*/in/z\.npy are the same file, by a link: leave one"):
        found(tmp_path / "in")


def test_what_is_no_regular_file_has_no_size(tmp_path: Path) -> None:
    make(tmp_path, "a.npy")
    (tmp_path / "broken.npy").symlink_to("nowhere.npy")
    (tmp_path / "self.npy").symlink_to("self.npy")
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "folder.npy").mkdir()

    files = find_episodes([str(tmp_path)])

    assert [(file.path, file.state.size) for file in files] == [
        ("a.npy", 5),
        ("broken.npy", -1),
        ("pipe.npy", -1),
        ("self.npy", -1),
    ]


def test_names_that_are_no_text_are_found(tmp_path: Path) -> None:
    names = [os.fsdecode(b"\xff.npy"), "line\nbreak.npy", "ü.npy"]
    make(tmp_path, *names)

    assert sorted(found(tmp_path / "*.npy")) == sorted(names)


def test_an_input_that_matches_nothing_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a.npy", "b/notes.txt")

    why = r"matches no \.npy or \.npz file; give a folder, a file or a glob with \*\*"
    with pytest.raises(EpisodeError, match=f"/b' {why}"):
        found(tmp_path, tmp_path / "b")
    with pytest.raises(EpisodeError, match=r"/\*\.npz' matches no"):
        found(tmp_path / "*.npz")


def test_an_input_that_is_not_there_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a.npy")

    with pytest.raises(EpisodeError, match=r"input '.*/nowhere' is not there"):
        found(tmp_path, tmp_path / "nowhere")
    with pytest.raises(EpisodeError, match=r"nowhere.* cannot be listed: No such file or directory"):
        found(tmp_path / "nowhere/*.npy")
    with pytest.raises(EpisodeError, match=r"input '.*/gone\.npy' is not there"):
        found(tmp_path / "gone.npy")


def test_local_paths_and_urls_do_not_mix(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match=r"all local paths or all URLs: .*, gs://bucket/in"):
        find_episodes([str(tmp_path), "gs://bucket/in"])
