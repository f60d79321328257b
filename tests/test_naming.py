import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.naming import (
    RESERVED,
    ShardName,
    is_feature_name,
    is_name,
    is_split_name,
    parse_shard_name,
    to_name,
)
from shards.record import INDEX

names = st.from_regex(r"[a-z][a-z0-9_]{0,99}", fullmatch=True)


@pytest.mark.parametrize(
    ("name", "file_name"),
    [
        (ShardName("cartpole", "train", 3, 16), "cartpole-train.tfrecord-00003-of-00016"),
        (ShardName("a", "b", 0, 1), "a-b.tfrecord-00000-of-00001"),
        (ShardName("my_data_2", "test_1", 99_999, 123_456), "my_data_2-test_1.tfrecord-99999-of-123456"),
        (ShardName("d", "s", 100_000, 123_456), "d-s.tfrecord-100000-of-123456"),
    ],
)
def test_a_shards_file_is_called_as_tfds_calls_it(name: ShardName, file_name: str) -> None:
    assert str(name) == file_name
    assert parse_shard_name(file_name) == name


@given(
    dataset=names,
    split=names,
    place=st.integers(1, 999_999_999).flatmap(lambda count: st.tuples(st.integers(0, count - 1), st.just(count))),
)
def test_every_shard_name_is_found_again_in_its_file_name(dataset: str, split: str, place: tuple[int, int]) -> None:
    name = ShardName(dataset, split, *place)

    assert parse_shard_name(str(name)) == name


@pytest.mark.parametrize(
    "file_name",
    [
        "",
        "notes.txt",
        "train.tfrecord-00000-of-00001",  # no dataset
        "a-b.tfrecord-00000-of-00001.tmp",
        "a-b.tfrecord-00000-of-00001\n",
        "x/a-b.tfrecord-00000-of-00001",
        "a-b.tfrecord-0000-of-0001",
        "a-b.tfrecord-000000-of-000001",  # wider than it need be
        "a-b.tfrecord-00001-of-00001",  # the second of one
        "a-b.tfrecord-00000-of-00000",
        "A-b.tfrecord-00000-of-00001",
        "a-b-c.tfrecord-00000-of-00001",
        "1-b.tfrecord-00000-of-00001",
        "a-b.tfrecord-" + "\N{ARABIC-INDIC DIGIT ZERO}" * 5 + "-of-00001",
        "a-b.array_record-00000-of-00001",
    ],
)
def test_any_other_file_name_is_no_shard(file_name: str) -> None:
    assert parse_shard_name(file_name) is None


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("a", True),
        ("cartpole_v1", True),
        ("all", True),
        ("a" * 100, True),
        ("a" * 101, False),
        ("", False),
        ("1a", False),
        ("_a", False),
        ("a-b", False),
        ("A", False),
        ("é", False),
        ("a\n", False),
        ("a/b", False),
        ("..", False),
    ],
)
def test_a_name_is_a_letter_then_letters_digits_and_underscores(text: str, valid: bool) -> None:
    assert is_name(text) is valid


def test_a_split_cannot_be_called_all() -> None:
    assert [is_split_name(text) for text in ("train", "all", "all_2", "Train")] == [True, False, True, False]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cartpole", "cartpole"),
        ("My data-v2", "my_data_v2"),
        ("2026", "dataset_2026"),
        ("_hidden_", "dataset_hidden"),
        ("", "dataset"),
        ("___", "dataset"),
        ("..", "dataset"),
        ("Füße", "f__e"),
        ("a" * 300, "a" * 80),
        ("9" * 300, "dataset_" + "9" * 72),
    ],
)
def test_any_text_has_a_name_near_it(text: str, name: str) -> None:
    assert to_name(text) == name


@given(st.text())
def test_the_name_near_any_text_is_a_name_and_stays_itself(text: str) -> None:
    name = to_name(text)

    assert is_name(name)
    assert to_name(name) == name


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("window", True),
        ("a", True),
        ("Speaker_2", True),
        ("_x", True),
        ("observation.image-left", True),
        ("a" * 100, True),
        ("a" * 101, False),
        ("", False),
        ("2nd", False),
        (".x", False),
        ("-x", False),
        ("a b", False),
        ("a/b", False),
        ("a\n", False),
        ("é", False),
        ("Episode", True),
        ("episodes", True),
    ],
)
def test_what_names_a_feature(text: str, valid: bool) -> None:
    assert is_feature_name(text) is valid


def test_what_records_and_batches_hold_besides_names_no_feature() -> None:
    assert RESERVED == ("episode", "start", "count", "valid", "mask")
    assert set(INDEX) < set(RESERVED)
    assert not any(map(is_feature_name, RESERVED))
