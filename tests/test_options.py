from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import BuildOptions
from pipeline.options import (
    parse_dtype,
    parse_features,
    parse_num_shards,
    parse_size,
    parse_splits,
    parse_windows_per_record,
)
from shards import OptionError
from shards.windows import WindowSpec


def options(**changes: Any) -> BuildOptions:
    return BuildOptions(**{"inputs": ("in",), "output": "out", "window_length": 8} | changes)


def test_defaults_are_windows_side_by_side_in_one_split() -> None:
    default = options()

    assert default.step_shift == 8
    assert default.window == WindowSpec(8, 8, stride=1, tail="drop", per_record=1)
    assert default.splits is None
    assert default.fractions == {"train": "1"}
    assert (default.features, dict(default.dtype), default.labels) == (None, {}, None)
    assert (default.split_by, default.splits_from, default.group_by, default.purge) == ("episode", None, None, 0)
    assert default.nonfinite == "warn"
    assert default.dataset_name == "out"
    assert default.shards_of("train") is None
    assert (default.seed, default.shard_size, default.on_error, default.overwrite) == (0, 134_217_728, "fail", False)


def test_options_cannot_change() -> None:
    with pytest.raises(FrozenInstanceError):
        options().seed = 3  # type: ignore[misc]


def test_a_shift_that_is_given_is_kept() -> None:
    assert options(shift=3).step_shift == 3
    assert options(shift=100).step_shift == 100


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("out", "out"),
        ("some/where/My-Data/", "my_data"),
        ("/", "dataset"),
        ("gs://bucket/run 7", "run_7"),
        ("2024", "dataset_2024"),
    ],
)
def test_a_dataset_is_called_as_its_folder(output: str, name: str) -> None:
    assert options(output=output).dataset_name == name
    assert options(output=output, name="given").dataset_name == "given"


def test_shards_are_asked_for_together_or_split_by_split() -> None:
    both = {"train": "0.5", "test": "0.5"}

    assert [options(splits=both, num_shards=4).shards_of(split) for split in both] == [4, 4]
    assert [options(splits=both, num_shards={"test": 2}).shards_of(split) for split in both] == [None, 2]


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"shift": 3, "stride": 2}, WindowSpec(8, 3, 2)),
        ({"tail": "pad", "windows_per_record": 5}, WindowSpec(8, 8, 1, "pad", 5)),
        ({"tail": "align", "windows_per_record": "auto"}, WindowSpec(8, 8, 1, "align", 1)),
        ({"window_length": 2**31 - 1, "shift": 2**31 - 1}, WindowSpec(2**31 - 1, 2**31 - 1)),
    ],
)
def test_windows_are_cut_as_asked(changes: dict[str, Any], window: WindowSpec) -> None:
    assert options(**changes).window == window


@pytest.mark.parametrize(
    ("changes", "fractions"),
    [
        ({"splits": {"a": "0.5", "b": "0.5"}}, {"a": "0.5", "b": "0.5"}),
        ({}, {"train": "1"}),
        ({"splits": "dirs"}, None),
        ({"splits_from": "fold", "labels": "labels.csv"}, None),
    ],
)
def test_fractions_are_there_unless_splits_are_given(changes: dict[str, Any], fractions: dict[str, str] | None) -> None:
    assert options(**changes).fractions == fractions


@pytest.mark.parametrize(
    "changes",
    [
        {"splits": {"a": "0.5", "b": "0.5"}, "split_by": "hash", "group_by": "run[0-9]+"},
        {"splits": {"a": "0.5", "b": "0.5"}, "split_by": "time", "purge": 0},
        {"splits": "dirs", "group_by": "speaker", "labels": "labels.csv"},
        {"splits": "dirs", "num_shards": {"whatever": 3}},  # which splits there are is not known yet
        {"splits_from": "fold", "labels": "labels.csv", "group_by": "speaker", "num_shards": {"fold1": 2}},
        {"features": ["x", "y.z"], "dtype": {"x": "bfloat16", "other": "bool"}},
    ],
)
def test_what_goes_together_is_taken(changes: dict[str, Any]) -> None:
    options(**changes)


LABELS = {"labels": "labels.csv"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"splits_from": "fold"}, "splits_from names a column of labels: give labels"),
        ({"splits_from": "fold", "splits": {"a": "1"}, **LABELS}, "splits_from and splits contradict each other"),
        ({"splits_from": "fold", "splits": "dirs", **LABELS}, "splits_from and splits contradict each other"),
        ({"splits_from": "fold", "split_by": "time", **LABELS}, "splits_from and split_by=time contradict each other"),
        ({"splits_from": "fold", "split_by": "hash", **LABELS}, "splits_from and split_by=hash contradict each other"),
        ({"splits": "dirs", "split_by": "time"}, "splits=dirs and split_by=time contradict each other"),
        ({"splits": "dirs", "split_by": "hash"}, "splits=dirs and split_by=hash contradict each other"),
        ({"group_by": "run", "split_by": "time"}, "group_by and split_by=time contradict each other: time splits ever"),
        ({"purge": 1}, "purge is for split_by=time only"),
        ({"purge": 1, "split_by": "hash", "splits": {"a": "0.5", "b": "0.5"}}, "purge is for split_by=time only"),
        ({"split_by": "hash"}, "split_by=hash needs splits of two names or more, such as train=0.8,test=0.2"),
        ({"split_by": "time", "splits": {"a": "1"}}, "split_by=time needs splits of two names or more"),
        ({"purge": 1, "splits": "dirs"}, "purge is for split_by=time only"),
        ({"group_by": ""}, "group_by must be a column of labels or a regular expression"),
    ],
)
def test_a_contradiction_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        options(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inputs": ()}, "inputs must be a sequence of one or more"),
        ({"inputs": "in"}, "inputs must be a sequence"),
        ({"inputs": ("in", "")}, "inputs must be a sequence"),
        ({"output": ""}, "output must name a folder"),
        ({"window_length": 0}, "window_length must be a whole number of 1 to 2147483647, not 0"),
        ({"window_length": 8.0}, "window_length must be a whole number of 1 to 2147483647, not 8.0"),
        ({"window_length": True}, "window_length must be a whole number of 1 to 2147483647, not True"),
        ({"window_length": 2**31}, "window_length must be a whole number of 1 to 2147483647, not 2147483648"),
        ({"shift": 0}, "shift must be a whole number of 1 to 2147483647, not 0"),
        ({"shift": -1}, "shift must be"),
        ({"shift": 2**31}, "shift must be"),
        ({"stride": 0}, "stride must be a whole number of 1 to 2147483647, not 0"),
        ({"stride": None}, "stride must be a whole number of 1 to 2147483647, not None"),
        ({"stride": 2**31}, "stride must be"),
        ({"tail": "keep"}, "tail must be drop, pad or align, not 'keep'"),
        ({"tail": None}, "tail must be drop, pad or align, not None"),
        ({"windows_per_record": 0}, "windows_per_record must be a whole number of 1 to 2147483647 or auto, not 0"),
        ({"windows_per_record": "4"}, "windows_per_record must be a whole number of 1 to 2147483647 or auto, not '4'"),
        ({"windows_per_record": None}, "windows_per_record must be"),
        ({"features": "x"}, "features must be a sequence of names, not 'x'; each up to 100 letters"),
        ({"features": ()}, r"features must be a sequence of names, not \(\)"),
        ({"features": ("x", "start")}, "features must be a sequence of names, .* none of episode, start"),
        ({"features": ("x", "2nd")}, "features must be a sequence of names"),
        ({"features": ("x", "y", "x")}, "features names one twice: x, y, x"),
        ({"dtype": {"x": "float128"}}, "dtype of x must be one of bool, int8, .*, bfloat16, not 'float128'"),
        ({"dtype": {"x": "<f4"}}, "dtype of x must be one of .*, not '<f4'"),
        ({"labels": ""}, "labels must name a file"),
        ({"labels": 3}, "labels must name a file"),
        ({"split_by": "steps"}, "split_by must be episode, time or hash, not 'steps'"),
        ({"purge": -1}, "purge must be a whole number of 0 or more, not -1"),
        ({"purge": 0.5}, "purge must be a whole number"),
        ({"nonfinite": "skip"}, "nonfinite must be warn or fail, not 'skip'"),
        ({"splits": "train"}, "splits must be fractions such as train=0.8,test=0.2, or dirs, not 'train'"),
        ({"splits": ["train"]}, r"splits must be fractions such as .*, or dirs, not \['train'\]"),
        ({"seed": -1}, "seed must be a whole number of 0 or more, not -1"),
        ({"seed": None}, "seed must be"),
        ({"seed": 2**63}, "seed must be"),
        ({"shard_size": 0}, "shard_size must be"),
        ({"workers": 0}, "workers must be"),
        ({"name": ""}, "name '' must be a lower-case letter, then"),
        ({"name": "Cart-Pole"}, "name 'Cart-Pole' must be a lower-case letter"),
        ({"on_error": "ignore"}, "on_error must be fail or skip, not 'ignore'"),
        ({"splits": {}}, "splits must name one split or more"),
        ({"splits": {"all": "1"}}, "split 'all' must be"),
        ({"splits": {"Train": "1"}}, "split 'Train' must be a lower-case letter"),
        ({"splits": {"train": 1}}, 'fraction of split train must be a decimal number as text, such as "0.8", not 1'),
        ({"splits": {"train": "80%"}}, "must be a decimal number"),
        ({"splits": {"train": "1e0"}}, "must be a decimal number"),
        ({"splits": {"train": "-1"}}, "must be a decimal number"),
        ({"splits": {"train": "1."}}, "must be a decimal number"),
        ({"splits": {"train": "nan"}}, "must be a decimal number"),
        ({"splits": {"train": "1", "test": "0"}}, "fraction of split test is 0; leave the split out"),
        ({"splits": {"train": "1", "test": "0.00"}}, "fraction of split test is 0"),
        ({"splits": {"train": "0.8", "test": "0.1"}}, r"add up to 1, but 0\.8 \+ 0\.1 = 0\.9"),
        ({"splits": {"train": "0.8", "test": "0.3"}}, r"add up to 1, but 0\.8 \+ 0\.3 = 1\.1"),
        ({"splits": {"train": "9" * 400}}, "add up to 1|must be a decimal number"),
        ({"num_shards": 0}, "num_shards of every split must be a whole number of 1 or more, not 0"),
        ({"num_shards": True}, "num_shards of every split must be a whole number of 1 or more, not True"),
        ({"num_shards": 2.5}, "num_shards .*must be"),
        ({"num_shards": "4"}, "num_shards"),
        ({"num_shards": {"train": -1}}, "num_shards of train must be"),
        ({"num_shards": {"test": 2}}, r"num_shards names 'test', which is none of the splits \['train'\]"),
        (
            {"num_shards": {"x": 2}},
            r"num_shards names 'x', which is none of the splits \['train'\]",
        ),
    ],
)
def test_an_option_that_cannot_be_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        options(**changes)


def test_an_option_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="window_length"):
        options(window_length=0)


@pytest.mark.parametrize("fractions", [("0.1",) * 10, ("0.33", "0.33", "0.34"), (".5", "0.50"), ("1",), ("1.000",)])
def test_fractions_add_up_as_decimal_numbers(fractions: tuple[str, ...]) -> None:
    splits = {f"s{i}": fraction for i, fraction in enumerate(fractions)}

    assert dict(options(splits=splits).splits) == splits


@pytest.mark.parametrize(
    ("text", "splits"),
    [
        ("train=1", {"train": "1"}),
        ("train=0.8,validation=0.1,test=0.1", {"train": "0.8", "validation": "0.1", "test": "0.1"}),
        (" train = 0.8 , test=0.2 ", {"train": "0.8", "test": "0.2"}),
    ],
)
def test_splits_are_parsed_in_their_order(text: str, splits: dict[str, str]) -> None:
    assert list(parse_splits(text).items()) == list(splits.items())


@pytest.mark.parametrize("text", ["", "train", "train=", "=1", "train=0.5,", "train=0.5,,test=0.5"])
def test_splits_that_are_no_pairs_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"splits must be like train=0\.8,validation=0\.1,test=0\.1, not"):
        parse_splits(text)


def test_a_split_that_is_named_twice_is_refused() -> None:
    with pytest.raises(OptionError, match=r"splits names train twice: 'train=0\.5,train=0\.5'"):
        parse_splits("train=0.5,train=0.5")


@pytest.mark.parametrize(
    ("text", "shards"),
    [("16", 16), ("train=16", {"train": 16}), ("train=16, test=2", {"train": 16, "test": 2}), ("0", 0)],
)
def test_shard_counts_are_parsed(text: str, shards: int | dict[str, int]) -> None:
    assert parse_num_shards(text) == shards


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5", "1e3", "16,2", "train=x", "train=", "٣", "train=1,2"])
def test_shard_counts_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="num_shards must be like"):
        parse_num_shards(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [("x", ("x",)), ("b,a", ("b", "a")), (" x , y.z-1 ", ("x", "y.z-1")), ("", ("",)), ("x,", ("x", ""))],
)
def test_names_of_features_are_parsed_in_their_order(text: str, names: tuple[str, ...]) -> None:
    assert parse_features(text) == names


@pytest.mark.parametrize("text", ["", "x,", ",x", "x,,y", "x y"])
def test_features_that_are_no_names_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="features must be a sequence of names"):
        options(features=parse_features(text))


def test_dtypes_are_parsed() -> None:
    assert parse_dtype("x=float16") == {"x": "float16"}
    assert parse_dtype(" x = float16 , y=int8") == {"x": "float16", "y": "int8"}


@pytest.mark.parametrize("text", ["", "x", "x=", "=int8", "x=int8,", "int8"])
def test_dtypes_that_are_no_pairs_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="dtype must be like observation=float16, not"):
        parse_dtype(text)


def test_a_dtype_that_is_given_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="dtype names x twice: 'x=int8,x=int16'"):
        parse_dtype("x=int8,x=int16")


def test_windows_per_record_are_parsed() -> None:
    assert [parse_windows_per_record(text) for text in ("auto", "1", "0", "0064")] == ["auto", 1, 0, 64]


@pytest.mark.parametrize("text", ["", "Auto", "all", "-1", "1.5", "1e3", " 4", "٣", "99999999999"])
def test_windows_per_record_that_are_no_number_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=f"windows_per_record must be a whole number of .* or auto, not '{text}'"):
        parse_windows_per_record(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("4096B", 4096),
        ("0", 0),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("128MiB", 134_217_728),
        ("128 MiB", 134_217_728),
        ("1.5GB", 1_500_000_000),
        ("0.1GB", 100_000_000),
        ("2TiB", 2_199_023_255_552),
    ],
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "1e6", "-1", "1 2", "MiB", "1MB/s", "1.MiB", ".5GB", "1iB", "1EB", "0x10"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="shard_size must be a size such as 128MiB, 1GB or 4096, not"):
        parse_size(text)


@given(st.integers(0, 2**60))
def test_a_number_of_bytes_is_itself(size: int) -> None:
    assert parse_size(str(size)) == parse_size(f"{size}B") == size
