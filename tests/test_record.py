import struct
from collections.abc import Iterator
from math import prod

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.features import DTYPES, Feature
from shards.record import (
    COUNT,
    EPISODE,
    INDEX,
    MAX_EPISODES,
    MAX_STEPS,
    START,
    VALID,
    Field,
    RecordLayout,
    decode_varints,
    encode_varints,
    record_layout,
)
from shards.windows import WindowSpec


def data_fields(layout: RecordLayout) -> list[Field]:
    """The fields of the dataset's own features."""
    return [field for field in layout.fields if field.feature.name not in INDEX]


def crc32c_bit_by_bit(data: bytes) -> int:
    """CRC-32C as RFC 3720 defines it, without a table or an extension module."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """The mask of tensorflow/core/lib/hash/crc32c.h."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def read_tfrecord(file: bytes) -> list[bytes]:
    """The data of each record, its length and both checksums verified."""
    found, at = [], 0
    while at < len(file):
        head = file[at : at + 8]
        (length,) = struct.unpack("<Q", head)
        data = file[at + 12 : at + 12 + length]
        assert struct.unpack("<I", file[at + 8 : at + 12]) == (masked(crc32c_bit_by_bit(head)),)
        assert struct.unpack("<I", file[at + 12 + length : at + 16 + length]) == (masked(crc32c_bit_by_bit(data)),)
        found.append(data)
        at += 16 + length
    return found


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, first byte after it)."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def read_message(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(field number, content) of each field of a message that has length-delimited fields alone."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        assert tag & 7 == 2
        size, at = read_varint(data, at)
        assert at + size <= len(data)
        yield tag >> 3, data[at : at + size]
        at += size


def read_example(data: bytes) -> dict[str, tuple[str, bytes]]:
    """{name: (kind, the packed or raw bytes of its values)} of a serialized tf.train.Example."""
    found = {}
    ((number, features),) = read_message(data)
    assert number == 1
    for number, entry in read_message(features):
        assert number == 1
        pair = dict(read_message(entry))
        ((kind, values),) = read_message(pair[2])
        ((number, raw),) = read_message(values)
        assert number == 1
        found[pair[1].decode()] = ({1: "bytes_list", 2: "float_list", 3: "int64_list"}[kind], raw)
    return found


def layout_of(*features: Feature) -> RecordLayout:
    """The layout of records of one window each, as long as the first feature."""
    return record_layout(features, WindowSpec(features[0].shape[0], 1))


def write_records(
    layout: RecordLayout, data: list[np.ndarray], episode: list[int], start: list[int], **integers: list[int]
) -> np.ndarray:
    """Finished records of n windows, one (n, *stored shape) array a feature, and more integers by name."""
    records = np.empty((len(episode), layout.record_bytes), np.uint8)
    layout.write_constants(records)
    for field, values in zip(data_fields(layout), data, strict=True):
        if field.encoding == "varint":
            layout.write_integers(records, field.feature.name, values)
        else:
            field.values(records)[...] = values
    for name, numbers in {"episode": episode, "start": start, **integers}.items():
        layout.write_integers(records, name, np.array(numbers, np.int64))
    layout.write_checksums(records)
    return records


def random_values(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Values of any bits at all, signalling NaNs included."""
    raw = np.random.default_rng(seed).integers(0, 256, prod(shape) * DTYPES[dtype].itemsize, np.uint8)
    return (raw & 1 if dtype == "bool" else raw).view(DTYPES[dtype]).reshape(shape)


def test_the_dtypes_are_those_that_numpy_and_tensorflow_share() -> None:
    assert list(DTYPES) == [
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
    ]
    assert {name: dtype.name for name, dtype in DTYPES.items()} == {name: name for name in DTYPES}
    assert DTYPES["bfloat16"] == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("feature", "nbytes"),
    [
        (Feature("a", "float32", (8, 3)), 96),
        (Feature("a", "bool", (5,)), 5),
        (Feature("a", "bfloat16", (4, 2)), 16),
        (Feature("a", "complex128", (2, 1, 3)), 96),
        (Feature("a", "int64", ()), 8),
        (Feature("a", "int64", (4, 0)), 0),
    ],
)
def test_a_features_bytes_are_counted(feature: Feature, nbytes: int) -> None:
    assert feature.nbytes == nbytes


def test_a_record_is_pinned_byte_for_byte() -> None:
    layout = layout_of(Feature("window", "int16", (3,)))

    records = write_records(layout, [np.array([[1, 2, -1]])], [5], [300])

    assert records.shape == (1, 92)
    assert records.tobytes().hex(" ", 4) == (
        "4c000000 00000000 f5d4a2a0 0ac68080 80000a16 0a067769 6e646f77 120c0a0a "
        "0a868000 01000200 ffff0a14 0a076570 69736f64 6512091a 070a0585 80808000 "
        "0a160a05 73746172 74120d1a 0b0a8680 8000ac82 80808000 e88961cc"
    )


def test_the_fields_say_where_the_values_lie() -> None:
    layout = layout_of(Feature("window", "int16", (3,)))
    records = write_records(layout, [np.array([[1, 2, -1]])], [5], [300])

    assert [(field.feature.name, field.encoding, field.nbytes) for field in layout.fields] == [
        ("window", "bytes", 6),
        ("episode", "varint", 5),
        ("start", "varint", 6),
    ]
    window = layout.field("window")
    assert records[0, window.offset : window.offset + 6].tobytes() == b"\x01\x00\x02\x00\xff\xff"
    assert layout.field("episode").values(records).tolist() == [5]
    assert layout.field("start").values(records).tolist() == [300]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (4,), (3, 2), (2, 3, 5), (40, 7)])
def test_every_dtype_comes_back_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    layout = layout_of(Feature("window", dtype, shape))
    values = random_values(dtype, (3, *shape))

    records = write_records(layout, [values], [0, 1, 2], [7, 8, 9])

    read = layout.field("window").values(records)
    assert read.dtype == DTYPES[dtype]
    assert read.shape == (3, *shape)
    assert read.tobytes() == values.tobytes()
    assert np.shares_memory(read, records)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_record_is_a_tensorflow_example(dtype: str) -> None:
    values = random_values(dtype, (2, 5, 3))
    layout = layout_of(Feature("window", dtype, (5, 3)))

    file = write_records(layout, [values], [3, 2**33], [0, 2**40]).tobytes()

    first, second = map(read_example, read_tfrecord(file))
    assert list(first) == ["window", "episode", "start"]
    assert first["window"] == ("float_list" if dtype == "float32" else "bytes_list", values[0].tobytes())
    assert second["window"][1] == values[1].tobytes()
    assert [first[name][0] for name in ("episode", "start")] == ["int64_list", "int64_list"]
    assert [read_varint(first[name][1], 0) for name in ("episode", "start")] == [(3, 5), (0, 6)]
    assert [read_varint(second[name][1], 0) for name in ("episode", "start")] == [(2**33, 5), (2**40, 6)]


def test_a_record_may_hold_several_arrays() -> None:
    layout = layout_of(
        Feature("image", "uint8", (2, 3)), Feature("action", "float32", (2,)), Feature("x", "float64", (2,))
    )
    data = [random_values("uint8", (4, 2, 3)), random_values("float32", (4, 2)), random_values("float64", (4, 2))]

    records = write_records(layout, data, [0, 0, 1, 1], [0, 1, 0, 1])

    for name, values in zip(("image", "action", "x"), data, strict=True):
        assert layout.field(name).values(records).tobytes() == values.tobytes()
    examples = list(map(read_example, read_tfrecord(records.tobytes())))
    assert [example["image"][1] for example in examples] == [values.tobytes() for values in data[0]]
    assert [example["x"][1] for example in examples] == [values.tobytes() for values in data[2]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 100),
            st.one_of(st.integers(1, 300), st.integers(16_300, 16_400), st.integers(2**21 - 130, 2**21 + 9)),
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda feature: feature[0],
    )
)
def test_data_and_records_begin_at_multiples_of_four(sizes: list[tuple[int, int]]) -> None:
    layout = layout_of(*(Feature("a" * name, "uint8", (1, nbytes)) for name, nbytes in sizes))

    assert [field.offset % 4 for field in data_fields(layout)] == [0] * len(sizes)
    assert layout.record_bytes % 4 == 0


@pytest.mark.parametrize("around", [0, 2**14, 2**21])
def test_a_window_of_any_size_begins_at_a_multiple_of_four(around: int) -> None:
    sizes = range(max(1, around - 140), around + 140)
    layouts = {size: layout_of(Feature("window", "uint8", (size,))) for size in sizes}

    askew = [size for size, layout in layouts.items() if layout.fields[0].offset % 4 or layout.record_bytes % 4]

    assert askew == []


@pytest.mark.parametrize("nbytes", [1, 95, 112, 113, 127, 128, 16_365, 16_383, 16_384, 70_000])
def test_lengths_of_any_width_are_read_by_a_parser(nbytes: int) -> None:
    layout = layout_of(Feature("window", "uint8", (nbytes,)))
    values = random_values("uint8", (1, nbytes))

    (data,) = read_tfrecord(write_records(layout, [values], [1], [2]).tobytes())

    assert read_example(data)["window"] == ("bytes_list", values.tobytes())


def test_no_records_are_an_empty_array() -> None:
    layout = layout_of(Feature("window", "float32", (2,)))

    records = write_records(layout, [np.empty((0, 2), np.float32)], [], [])

    assert records.shape == (0, layout.record_bytes)
    assert layout.damaged(records).tolist() == []


def test_damage_to_any_byte_of_a_record_is_found() -> None:
    layout = layout_of(Feature("window", "float32", (3,)))
    whole = write_records(layout, [np.ones((3, 3), np.float32)], [0, 1, 2], [0, 3, 6])
    assert layout.damaged(whole).tolist() == []

    for byte in range(layout.record_bytes):
        records = whole.copy()
        records[1, byte] ^= 0x10
        assert layout.damaged(records).tolist() == [1]


def test_damage_is_found_in_rows_that_do_not_lie_side_by_side() -> None:
    layout = layout_of(Feature("window", "float32", (3,)))
    records = write_records(layout, [np.ones((6, 3), np.float32)], list(range(6)), [0] * 6)
    records[4, 30] ^= 1

    assert layout.damaged(records[::2]).tolist() == [2]


@pytest.mark.parametrize(
    ("value", "width", "encoded"),
    [
        (0, 1, "00"),
        (127, 1, "7f"),
        (0, 3, "80 80 00"),
        (5, 3, "85 80 00"),
        (300, 2, "ac 02"),
        (300, 6, "ac 82 80 80 80 00"),
        (2**35 - 1, 5, "ff ff ff ff 7f"),
    ],
)
def test_integers_are_varints_of_a_fixed_width(value: int, width: int, encoded: str) -> None:
    assert encode_varints(np.array([value]), width).tobytes().hex(" ") == encoded
    assert decode_varints(np.frombuffer(bytes.fromhex(encoded), np.uint8)[None]).tolist() == [value]


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "80 80 80 80 80 80 80 80 80 00"),
        (-1, "ff ff ff ff ff ff ff ff ff 01"),
        (-(2**63), "80 80 80 80 80 80 80 80 80 01"),
        (2**63 - 1, "ff ff ff ff ff ff ff ff ff 00"),
    ],
)
def test_ten_bytes_hold_any_int64(value: int, encoded: str) -> None:
    assert encode_varints(np.array([value]), 10).tobytes().hex(" ") == encoded
    assert decode_varints(np.frombuffer(bytes.fromhex(encoded), np.uint8)[None]).tolist() == [value]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_negative_integers_come_back(values: list[int]) -> None:
    encoded = encode_varints(np.array(values, np.int64), 10)

    assert encoded.shape == (len(values), 10)
    assert decode_varints(encoded).tolist() == values
    assert [read_varint(row.tobytes(), 0) for row in encoded] == [(value % 2**64, 10) for value in values]


@given(width=st.integers(1, 9), data=st.data())
def test_varints_come_back(width: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, 2 ** (7 * width) - 1), max_size=5))

    encoded = encode_varints(np.array(values, np.int64), width)

    assert encoded.shape == (len(values), width)
    assert decode_varints(encoded).tolist() == values
    assert [read_varint(row.tobytes(), 0) for row in encoded] == [(value, width) for value in values]


def test_the_largest_episode_and_step_come_back() -> None:
    layout = layout_of(Feature("window", "uint8", (1,)))

    records = write_records(layout, [np.zeros((1, 1))], [MAX_EPISODES - 1], [MAX_STEPS - 1])

    assert (MAX_EPISODES, MAX_STEPS) == (2**35, 2**42)
    assert layout.field("episode").values(records).tolist() == [2**35 - 1]
    assert layout.field("start").values(records).tolist() == [2**42 - 1]
    assert Feature("episode", "int64", ()) == EPISODE
    assert Feature("start", "int64", ()) == START


def test_the_integers_of_a_record_are_what_its_windows_need() -> None:
    feature = Feature("x", "uint8", (4,))

    def names(spec: WindowSpec) -> list[str]:
        return [field.feature.name for field in record_layout([feature], spec).fields]

    assert names(WindowSpec(4, 2)) == names(WindowSpec(4, 2, 3, "align")) == ["x", "episode", "start"]
    assert names(WindowSpec(4, 2, tail="pad")) == ["x", "episode", "valid", "start"]
    assert names(WindowSpec(4, 2, per_record=2)) == ["x", "episode", "count", "valid", "start"]
    assert names(WindowSpec(4, 2, tail="pad", per_record=2)) == ["x", "episode", "count", "valid", "start"]
    assert (Feature("count", "int64", ()), Feature("valid", "int64", ())) == (COUNT, VALID)


def test_a_record_of_several_windows_is_pinned_byte_for_byte() -> None:
    features = [Feature("x", "int8", (2,)), Feature("y", "float32", ()), Feature("z", "int64", (), ("a", "b"))]
    layout = record_layout(features, WindowSpec(2, 2, per_record=2))

    data = [np.array([[1, 2, 3, -1]]), np.array([0.5]), np.array([-2])]
    records = write_records(layout, data, [5], [300], count=[2], valid=[4])

    assert records.tobytes().hex(" ", 4) == (
        "90000000 00000000 966337fd 0a8a8180 80000a10 0a017812 0b0a090a 84808000 010203ff 0a0e0a01 "
        "79120912 070a8400 0000003f 0a130a01 7a120e1a 0c0a0afe ffffffff ffffffff 010a140a 07657069 "
        "736f6465 12091a07 0a058580 8080000a 120a0563 6f756e74 12091a07 0a058280 8080000a 120a0576 "
        "616c6964 12091a07 0a058480 8080000a 130a0573 74617274 120a1a08 0a06ac82 80808000 b6a9d611"
    )
    assert {name: layout.field(name).values(records).tolist() for name in ("y", "z", "count", "valid")} == {
        "y": [0.5],
        "z": [-2],
        "count": [2],
        "valid": [4],
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_of_the_whole_episode_comes_back_bit_for_bit(dtype: str) -> None:
    layout = layout_of(Feature("window", "uint8", (3,)), Feature("value", dtype, ()))
    values = random_values(dtype, (4,))

    records = write_records(layout, [np.ones((4, 3)), values], [0, 1, 2, 3], [0, 0, 0, 0])

    read = layout.field("value").values(records)
    assert (read.dtype, read.shape, read.tobytes()) == (DTYPES[dtype], (4,), values.tobytes())
    assert layout.field("value").encoding == {"float32": "float_list", "int64": "varint"}.get(dtype, "bytes")
    assert np.shares_memory(read, records) == (dtype != "int64")


names = st.from_regex("[A-Za-z_][A-Za-z0-9_.-]{0,99}", fullmatch=True).filter(
    lambda name: name not in {"episode", "start", "count", "valid"}
)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[RecordLayout, list[Feature], WindowSpec]:
    spec = WindowSpec(
        draw(st.integers(1, 6)),
        draw(st.integers(1, 8)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from(["drop", "pad", "align"])),
        draw(st.integers(1, 4)),
    )
    steps = st.lists(st.integers(1, 40), max_size=2).map(lambda shape: (spec.length, *shape))
    features = draw(
        st.lists(
            st.builds(Feature, names, st.sampled_from([*DTYPES]), st.one_of(steps, st.just(()))),
            min_size=1,
            max_size=4,
            unique_by=lambda feature: feature.name,
        )
    )
    return record_layout(features, spec), features, spec


@settings(max_examples=150, deadline=None)
@given(made=layouts(), count=st.integers(1, 3), seed=st.integers(0, 99))
def test_protocol_buffers_read_every_kind_of_record(
    made: tuple[RecordLayout, list[Feature], WindowSpec], count: int, seed: int
) -> None:
    from tensorflow.train import Example

    layout, features, spec = made
    stored = [(spec.record_steps, *feature.shape[1:]) if feature.shape else () for feature in features]
    data = [
        random_values(feature.dtype, (count, *shape), seed) for feature, shape in zip(features, stored, strict=True)
    ]
    integers = {name: [seed + i for i in range(count)] for name in ("episode", "count", "valid", "start")}
    integers = {name: numbers for name, numbers in integers.items() if name in layout}

    records = write_records(layout, data, **integers)

    assert layout.damaged(records).tolist() == []
    assert layout.record_bytes % 4 == 0
    assert [field.offset % 4 for field in data_fields(layout) if field.encoding != "varint"] == [
        0 for feature in features if (feature.dtype, feature.shape) != ("int64", ())
    ]
    assert {part.feature.name: part.feature.shape for part in data_fields(layout)} == {
        feature.name: shape for feature, shape in zip(features, stored, strict=True)
    }
    for row, serialized in enumerate(read_tfrecord(records.tobytes())):
        assert [*read_example(serialized)] == [feature.name for feature in features] + [
            name for name in ("episode", "count", "valid", "start") if name in integers
        ]
        found = Example.FromString(serialized).features.feature
        assert found.keys() == {field.feature.name for field in layout.fields}
        assert {name: found[name].int64_list.value[:] for name in integers} == {
            name: [numbers[row]] for name, numbers in integers.items()
        }
        for feature, values in zip(features, data, strict=True):
            if feature.dtype == "float32":  # Python floats may change the payload of a NaN: compare as numbers
                read = np.array(found[feature.name].float_list.value, np.float32)
                assert np.array_equal(read, values[row].ravel(), equal_nan=True)
            elif (feature.dtype, feature.shape) == ("int64", ()):
                assert found[feature.name].int64_list.value[:] == [int(values[row])]
            else:
                assert found[feature.name].bytes_list.value[:] == [values[row].tobytes()]


@settings(max_examples=60, deadline=None)
@given(made=layouts(), data=st.data())
def test_nothing_but_values_integers_and_the_checksum_differs_between_records(
    made: tuple[RecordLayout, list[Feature], WindowSpec], data: st.DataObject
) -> None:
    layout, _, _ = made
    records = np.zeros((2, layout.record_bytes), np.uint8)
    records[1] = 255
    layout.write_constants(records)

    free = np.flatnonzero(records[0] != records[1])

    assert free.tolist() == [
        *(place for field in layout.fields for place in range(field.offset, field.offset + field.nbytes)),
        *range(layout.record_bytes - 4, layout.record_bytes),
    ]
