from collections.abc import Callable
from typing import Any

import pytest

from shards.document import Document
from shards.errors import ManifestError

Read = Callable[[Document], Any]


def document(**keys: Any) -> Document:
    return Document(keys, "m.json", "splits[2]")


@pytest.mark.parametrize(
    ("read", "value", "result"),
    [
        (lambda d: d.text("key"), "", ""),
        (lambda d: d.optional_text("key"), "a", "a"),
        (lambda d: d.optional_text("key"), None, None),
        (lambda d: d.name("key"), "demo_2", "demo_2"),
        (lambda d: d.digest("key"), "0123456789abcdef" * 4, "0123456789abcdef" * 4),
        (lambda d: d.integer("key"), 0, 0),
        (lambda d: d.integer("key"), 2**63 - 1, 2**63 - 1),
        (lambda d: d.integer("key", least=3), 3, 3),
        (lambda d: d.integers("key"), [], ()),
        (lambda d: d.integers("key"), [0, 5], (0, 5)),
        (lambda d: d.number("key"), -0.5, -0.5),
        (lambda d: d.number("key"), 1.0, 1.0),
        (lambda d: d.numbers("key"), [1.0, -2.5], (1.0, -2.5)),
        (lambda d: d.texts("key"), [], ()),
        (lambda d: d.texts("key"), ["b", ""], ("b", "")),
        (lambda d: d.choice("key", ["drop", "pad"]), "pad", "pad"),
        (lambda d: d.expect("key", "x"), "x", None),
        (lambda d: d.object("key").document, {"a": 1}, {"a": 1}),
        (lambda d: [item.document for item in d.objects("key")], [{"a": 1}, {}], [{"a": 1}, {}]),
        (lambda d: d.objects("key"), [], []),
    ],
)
def test_what_is_right_is_read(read: Read, value: Any, result: Any) -> None:
    one = document(key=value)

    assert read(one) == result
    one.end()


@pytest.mark.parametrize(
    ("read", "value", "why"),
    [
        (lambda d: d.text("key"), 1, "is 1, not a text"),
        (lambda d: d.text("key"), None, "is None, not a text"),
        (lambda d: d.optional_text("key"), 1, "is 1, not a text"),
        (lambda d: d.optional_text("key"), False, "is False, not a text"),
        (lambda d: d.name("key"), "Demo", "is 'Demo', which is no name"),
        (lambda d: d.digest("key"), "a" * 63, "not a SHA-256 digest"),
        (lambda d: d.digest("key"), "A" * 64, "not a SHA-256 digest"),
        (lambda d: d.integer("key"), -1, "is -1, not a whole number of 0 or more"),
        (lambda d: d.integer("key"), 2**63, "not a whole number of 0 or more"),
        (lambda d: d.integer("key"), True, "is True, not a whole number"),
        (lambda d: d.integer("key"), 1.0, r"is 1\.0, not a whole number"),
        (lambda d: d.integer("key", least=3), 2, "is 2, not a whole number of 3 or more"),
        (lambda d: d.integers("key"), 1, "is 1, not a list"),
        (lambda d: d.integers("key"), [0, -1], "is -1, not a whole number of 0 or more"),
        (lambda d: d.integers("key"), [False], "is False, not a whole number"),
        (lambda d: d.number("key"), 1, "is 1, not a finite number with a fraction"),
        (lambda d: d.number("key"), float("nan"), "is nan, not a finite number"),
        (lambda d: d.number("key"), float("inf"), "is inf, not a finite number"),
        (lambda d: d.number("key"), "1.0", r"is '1\.0', not a finite number"),
        (lambda d: d.numbers("key"), [1.0, 2], "is 2, not a finite number"),
        (lambda d: d.numbers("key"), (1.0,), "not a list"),
        (lambda d: d.texts("key"), ["a", 1], r"is \['a', 1\], not a list of texts"),
        (lambda d: d.texts("key"), "ab", "is 'ab', not a list"),
        (lambda d: d.choice("key", ["drop", "pad"]), "Pad", "is 'Pad', none of drop, pad"),
        (lambda d: d.choice("key", ["drop", "pad"]), None, "is None, not a text"),
        (lambda d: d.expect("key", 1), True, "is True where 1 belongs"),
        (lambda d: d.expect("key", 1), 1.0, r"is 1\.0 where 1 belongs"),
        (lambda d: d.object("key"), [], "is not a JSON object"),
        (lambda d: d.objects("key"), {}, "is {}, not a list"),
        (lambda d: d.objects("key"), [{}, 3], r"\[1\] is not a JSON object"),
        (
            lambda d: d.text("key"),
            ["a" * 999],
            r"is \['a{1,198}, not a text; copy or build the dataset again$",
        ),  # no message is a page long
    ],
)
def test_what_is_wrong_is_named_with_its_place(read: Read, value: Any, why: str) -> None:
    with pytest.raises(ManifestError, match=rf"^m\.json is damaged: splits\[2\]\.key.*{why}"):
        read(document(key=value))


@pytest.mark.parametrize(
    "read",
    [
        lambda d: d.text("key"),
        lambda d: d.optional_text("key"),
        lambda d: d.name("key"),
        lambda d: d.digest("key"),
        lambda d: d.integer("key"),
        lambda d: d.integers("key"),
        lambda d: d.number("key"),
        lambda d: d.numbers("key"),
        lambda d: d.texts("key"),
        lambda d: d.choice("key", [""]),
        lambda d: d.expect("key", None),
        lambda d: d.object("key"),
        lambda d: d.objects("key"),
    ],
)
def test_a_missing_key_is_named(read: Read) -> None:
    with pytest.raises(ManifestError, match=r"^m\.json is damaged: splits\[2\]\.key is missing; copy or build"):
        read(document(other=1))


def test_a_key_that_was_not_read_is_named() -> None:
    one = document(a=1, c=2, b=3)
    one.integer("a")

    with pytest.raises(ManifestError, match=r"splits\[2\]\.b is unknown in this format version; copy"):
        one.end()


def test_places_are_named_from_the_top() -> None:
    top = Document({"a": {"b": [{"c": {"d": 1}}]}}, "m.json", "")
    inner = top.object("a").objects("b")[0].object("c")

    with pytest.raises(ManifestError, match=r"m\.json is damaged: a\.b\[0\]\.c\.d is 1, not a text"):
        inner.text("d")
    with pytest.raises(ManifestError, match=r"m\.json is damaged: x is missing"):
        top.text("x")


@pytest.mark.parametrize("whole", [None, [], "text", 1])
def test_the_whole_must_be_an_object(whole: Any) -> None:
    with pytest.raises(ManifestError, match=r"m\.json is damaged: the whole is not a JSON object"):
        Document(whole, "m.json", "")
