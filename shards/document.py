"""A JSON object read strictly: every key known, present and of its type, or an error that names its place."""

import json
from collections.abc import Sequence
from math import isfinite
from reprlib import Repr
from typing import Any, NoReturn

from .errors import ManifestError
from .naming import is_name
from .text import printable

_INTEGER_DIGITS = 20  # with the sign, of any int64; the time that Python takes for more grows with their square
# Values are shown in messages, and may be as large as the file.
_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxstring, _SHORT.maxother = 4, 20, 20, 500, 200


def parse_document(text: bytes, file: str) -> "Document":
    """The object that a JSON text in UTF-8 is; `file` is only for error messages.

    Memory: about 35 times the text where it is made to take much.
    Errors: ManifestError for anything else, for keys that come twice, and for what is no JSON but known to Python.
    """
    try:
        whole = json.loads(
            text.decode(), object_pairs_hook=_unique, parse_int=_parse_integer, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{file} is damaged: not JSON ({error}); copy or build the dataset again") from None
    return Document(whole, file, "")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"an object has the key {key[:100]!r} twice")
        found[key] = value
    return found


def _parse_integer(digits: str) -> int:
    if len(digits) > _INTEGER_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name} for a number")


class Document:
    """A JSON object of the manifest, read key by key; every complaint names the file and the key's full place."""

    def __init__(self, document: Any, file: str, place: str) -> None:
        self.document, self._file, self._place = document, file, place
        if not isinstance(document, dict):
            raise ManifestError(
                f"{file} is damaged: {place or 'the whole'} is not a JSON object; copy or build the dataset again"
            )
        self._unread = set(document)

    def wrong(self, key: str, why: str) -> ManifestError:
        """The error that `key` here is wrong, and why."""
        known = printable(key[:100])
        place = f"{self._place}.{known}" if self._place else known
        return ManifestError(f"{self._file} is damaged: {place} {why}; copy or build the dataset again")

    def _get(self, key: str) -> Any:
        if key not in self.document:
            raise self.wrong(key, "is missing")
        self._unread.discard(key)
        return self.document[key]

    def end(self) -> None:
        """Complain of any key that was not read."""
        for key in sorted(self._unread):
            raise self.wrong(key, "is unknown in this format version")

    def expect(self, key: str, value: object) -> None:
        """Read a key that can have but one value."""
        self.expect_value(key, self._get(key), value)

    def expect_value(self, key: str, value: object, expected: object) -> None:
        """Complain unless a value already read is the expected one."""
        if value != expected or type(value) is not type(expected):
            raise self.wrong(key, f"is {_shown(value)} where {expected!r} belongs")

    def text(self, key: str) -> str:
        """Read a text."""
        value = self._get(key)
        if not isinstance(value, str):
            raise self.wrong(key, f"is {_shown(value)}, not a text")
        return value

    def name(self, key: str) -> str:
        """Read a name, as a dataset can have it."""
        value = self.text(key)
        if not is_name(value):
            raise self.wrong(key, f"is {_shown(value)}, which is no name")
        return value

    def digest(self, key: str) -> str:
        """Read a SHA-256 digest in hexadecimal."""
        value = self.text(key)
        if len(value) != 64 or not set(value) <= set("0123456789abcdef"):
            raise self.wrong(key, f"is {_shown(value)}, not a SHA-256 digest in hexadecimal")
        return value

    def integer(self, key: str, least: int = 0) -> int:
        """Read a whole number in [least, 2**63)."""
        return self._integer(key, self._get(key), least)

    def _integer(self, key: str, value: Any, least: int) -> int:
        if type(value) is not int or not least <= value < 2**63:
            raise self.wrong(key, f"is {_shown(value)}, not a whole number of {least} or more")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """Read a list of whole numbers."""
        return tuple(self._integer(key, value, 0) for value in self._list(key))

    def number(self, key: str) -> float:
        """Read a finite number that is written with a fraction."""
        return self._number(key, self._get(key))

    def _number(self, key: str, value: Any) -> float:
        if type(value) is not float or not isfinite(value):
            raise self.wrong(key, f"is {_shown(value)}, not a finite number with a fraction")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        """Read a list of such numbers."""
        return tuple(self._number(key, value) for value in self._list(key))

    def texts(self, key: str) -> tuple[str, ...]:
        """Read a list of texts."""
        values = self._list(key)
        if not all(isinstance(value, str) for value in values):
            raise self.wrong(key, f"is {_shown(values)}, not a list of texts")
        if odd := [value for value in values if not value.isascii() and any(map(_is_surrogate, value))]:
            raise self.wrong(key, f"has {_shown(odd[0])}, which is no Unicode text")
        return tuple(values)

    def optional_text(self, key: str) -> str | None:
        """Read a text or null."""
        return None if self.document.get(key, "") is None and self._get(key) is None else self.text(key)

    def choice(self, key: str, choices: Sequence[str]) -> str:
        """Read one of some texts."""
        value = self.text(key)
        if value not in choices:
            raise self.wrong(key, f"is {_shown(value)}, none of {', '.join(choices):.500}")
        return value

    def object(self, key: str) -> "Document":
        """Read an object."""
        return Document(self._get(key), self._file, f"{self._place}.{key}" if self._place else key)

    def objects(self, key: str) -> list["Document"]:
        """Read a list of objects."""
        place = f"{self._place}.{key}" if self._place else key
        return [Document(value, self._file, f"{place}[{index}]") for index, value in enumerate(self._list(key))]

    def _list(self, key: str) -> list[Any]:
        value: Any = self._get(key)
        if not isinstance(value, list):
            raise self.wrong(key, f"is {_shown(value)}, not a list")
        return value


def _shown(value: object) -> str:
    return f"{_SHORT.repr(value):.200}"


def _is_surrogate(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"
