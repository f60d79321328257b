"""Numbers and tables as people read them."""

from collections.abc import Mapping, Sequence


def printable(text: str, keep: str = "") -> str:
    """Text in one line that no terminal obeys: what is not printable is escaped as in a literal, but for `keep`.

    >>> print(printable("run 1\\n\\x1b[2J\\udcff.npy"))
    run 1\\n\\x1b[2J\\udcff.npy
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def format_bytes(count: int) -> str:
    """A size in binary units.

    >>> format_bytes(999), format_bytes(128 * 2**20), format_bytes(1536)
    ('999 B', '128.0 MiB', '1.5 KiB')
    """
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while round(size, 1) >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is aligned to the left and all others to the right.

    >>> print(format_table(["split", "windows"], [["train", "12"], ["test", "3"]]))
    split  windows
    train       12
    test         3
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *rows)
    )


def format_window(window: Mapping[str, int | str]) -> str:
    """How windows are cut, as the manifest has it, in words.

    >>> format_window({"length": 5, "shift": 2, "stride": 2, "tail": "drop", "windows_per_record": 1})
    'of 5 steps, 2 apart; a window every 2 steps; tail: drop'
    """
    apart = f", {window['stride']} apart" if window["stride"] != 1 else ""
    shared = f"; {window['windows_per_record']} a record" if window["windows_per_record"] != 1 else ""
    return f"of {window['length']} steps{apart}; a window every {window['shift']} steps; tail: {window['tail']}{shared}"
