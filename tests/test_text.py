import pytest

from shards.manifest_file import window_document
from shards.text import format_bytes, format_table, format_window, printable
from shards.windows import WindowSpec


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1.0 MiB"),  # not 1024.0 KiB
        (2**20, "1.0 MiB"),
        (128 * 2**20, "128.0 MiB"),
        (3 * 2**30, "3.0 GiB"),
        (5 * 2**40, "5.0 TiB"),
        (7 * 2**50, "7.0 PiB"),
        (2**62, "4096.0 PiB"),
    ],
)
def test_sizes_have_the_unit_in_which_they_are_short(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_a_table_aligns_names_left_and_numbers_right() -> None:
    rows = [("train", "1,024", "8"), ("validation", "3", "16")]

    assert format_table(("split", "windows", "shards"), rows).splitlines() == [
        "split       windows  shards",
        "train         1,024       8",
        "validation        3      16",
    ]


def test_a_table_without_rows_is_its_header() -> None:
    assert format_table(("split", "windows"), []) == "split  windows"


def test_a_tables_lines_do_not_end_in_spaces() -> None:
    assert format_table(("a", "b"), [("longer", "")]).splitlines() == ["a       b", "longer"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (WindowSpec(5, 2), "of 5 steps; a window every 2 steps; tail: drop"),
        (WindowSpec(5, 2, 3), "of 5 steps, 3 apart; a window every 2 steps; tail: drop"),
        (WindowSpec(5, 2, tail="pad"), "of 5 steps; a window every 2 steps; tail: pad"),
        (WindowSpec(5, 2, 3, "align", 8), "of 5 steps, 3 apart; a window every 2 steps; tail: align; 8 a record"),
    ],
)
def test_how_windows_are_cut_is_told_in_words(spec: WindowSpec, words: str) -> None:
    assert format_window(window_document(spec)) == words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run 1/a.npy", "run 1/a.npy"),
        ("ünï\\", "ünï\\"),
        ("a\nb\r\t", r"a\nb\r\t"),
        ("\x1b[2J\x9b\0", r"\x1b[2J\x9b\x00"),
        ("\udcff\u202e\u2028", r"\udcff\u202e\u2028"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable("x\n" + text, keep="\n") == "x\n" + shown.replace(r"\n", "\n")
