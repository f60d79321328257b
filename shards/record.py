"""One record: at once a `tf.train.Example` in TFRecord framing and an element of a fixed-size array.

Every record of a dataset has the same number of bytes, so the bytes around the data are the same in each record but for
some integers and a checksum, and n records are an (n, record_bytes) uint8 array. docs/format.md has the layout.

Sources: the TFRecord framing (length, masked CRC-32C of it, data, masked CRC-32C of that) is TensorFlow's; the wire
format (tags, lengths, varints, which may be longer than they need be) is Protocol Buffers'.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from .features import Feature
from .windows import WindowSpec

Encoding = Literal["float_list", "bytes", "varint"]

_HEAD_BYTES = 12  # uint64 length, uint32 masked CRC-32C of it
_FOOT_BYTES = 4  # uint32 masked CRC-32C of the data
_LENGTH_BYTES = 5  # a length prefix may be padded to this: 35 bits
_MAX_DATA_BYTES = 2**28  # a window's array; its length then fits four bytes, and the fifth is free for alignment
_ALIGNMENT = 4  # of records, and of the data in them
_INDEX_BYTES = {"episode": 5, "count": 5, "valid": 5, "start": 6}
_INTEGER_BYTES = 10  # any int64
#: What a record may have besides its features.
INDEX = tuple(_INDEX_BYTES)

MAX_EPISODES = 2 ** (7 * _INDEX_BYTES["episode"])
MAX_STEPS = 2 ** (7 * _INDEX_BYTES["start"])
MAX_RECORD_ARRAY = _MAX_DATA_BYTES - 1
MAX_RECORD_BYTES = 2**31  # of all arrays; Protocol Buffers have no larger message

#: Of every record: the number of the episode that it was cut from, and its first step there.
EPISODE = Feature("episode", "int64", ())
START = Feature("start", "int64", ())
#: Of records of several windows: how many this one holds.
COUNT = Feature("count", "int64", ())
#: Of records of several windows and of windows that may be padded: how many of the stored steps are real.
VALID = Feature("valid", "int64", ())


@dataclass(frozen=True)
class Field:
    """Where one feature lies in each record: `nbytes` bytes from `offset` on."""

    feature: Feature
    encoding: Encoding
    offset: int
    nbytes: int

    def values(self, records: NDArray[np.uint8]) -> np.ndarray:
        """The feature of (n, record_bytes) records as an (n, *shape) array: a view of data, a copy of integers."""
        return self.of(records[:, self.offset : self.offset + self.nbytes])

    def of(self, raw: NDArray[np.uint8]) -> np.ndarray:
        """The same from the (n, nbytes) bytes of this field alone."""
        if self.encoding == "varint":
            return decode_varints(raw)
        return raw.view(self.feature.numpy_dtype).reshape(len(raw), *self.feature.shape)


@dataclass(frozen=True)
class RecordLayout:
    """Where the features lie in each record, and (offset, bytes) of all that is the same in every record.

    `record_bytes` are those of one record, framing included.
    """

    fields: tuple[Field, ...]
    constant: tuple[tuple[int, bytes], ...]
    record_bytes: int

    def field(self, name: str) -> Field:
        """The field of one feature."""
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        return {field.feature.name: field for field in self.fields}

    def write_constants(self, records: NDArray[np.uint8]) -> None:
        """Begin (n, record_bytes) records of undefined content: all but data, integers and checksums."""
        for offset, part in self.constant:
            records[:, offset : offset + len(part)] = np.frombuffer(part, np.uint8)

    def write_integers(self, records: NDArray[np.uint8], name: str, values: NDArray[np.int64]) -> None:
        """Write an integer feature of (n, record_bytes) records from n values."""
        field = self.field(name)
        records[:, field.offset : field.offset + field.nbytes] = encode_varints(values, field.nbytes)

    def write_checksums(self, records: NDArray[np.uint8]) -> None:
        """Finish (n, record_bytes) records: the checksum of each one's data, last since it covers all the rest."""
        records[:, -_FOOT_BYTES:] = _mask(_checksums(records)).view(np.uint8).reshape(-1, _FOOT_BYTES)

    def damaged(self, records: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Which of (n, record_bytes) records are not whole: their framing or a checksum is wrong."""
        head = np.frombuffer(self.constant[0][1][:_HEAD_BYTES], np.uint8)
        framed = (records[:, :_HEAD_BYTES] == head).all(axis=1)
        foot = np.ascontiguousarray(records[:, -_FOOT_BYTES:]).view("<u4")[:, 0]
        return np.flatnonzero(~framed | (foot != _mask(_checksums(records))))


def record_layout(features: Sequence[Feature], spec: WindowSpec) -> RecordLayout:
    """Lay out records that hold `features` of windows cut as `spec` says.

    A feature's stored shape begins with `spec.record_steps` in place of the window's length. float32 is a packed
    `float_list`; an int64 value of an episode an `int64_list`, as are the integers that every record has; all else a
    `bytes_list` of one little-endian C-order buffer. Arrays begin at multiples of 4, and so do records, by way of
    length prefixes that are longer than they need be.
    """
    parts = [_part(_stored(feature, spec)) for feature in features] + [_part(EPISODE)]
    if spec.per_record > 1:
        parts.append(_part(COUNT))
    if spec.per_record > 1 or spec.tail == "pad":
        parts.append(_part(VALID))
    parts.append(_part(START))
    fields: list[Field] = []
    constant: list[tuple[int, bytes]] = []
    begin = at = _HEAD_BYTES + 1 + _LENGTH_BYTES
    for feature, encoding, nbytes in parts:
        if encoding == "varint" and feature is not START:  # needs no alignment: it is read byte by byte
            head = _feature_head(feature.name, encoding, nbytes, 0)
        else:
            head = _aligned_head(feature.name, encoding, nbytes, at)
        constant.append((at, head))
        fields.append(Field(feature, encoding, at + len(head), nbytes))
        at += len(head) + nbytes
    length = (at - _HEAD_BYTES).to_bytes(8, "little")
    length_crc = _mask(np.array([crc32c(length)], "<u4")).tobytes()
    features_head = b"\x0a" + _varint(at - begin, _LENGTH_BYTES)  # Example.features
    constant.insert(0, (0, length + length_crc + features_head))
    return RecordLayout(tuple(fields), tuple(constant), at + _FOOT_BYTES)


def _stored(feature: Feature, spec: WindowSpec) -> Feature:
    return replace(feature, shape=(spec.record_steps, *feature.shape[1:])) if feature.shape else feature


def _part(feature: Feature) -> tuple[Feature, Encoding, int]:
    if feature.shape == () and feature.dtype == "int64":
        return feature, "varint", _INDEX_BYTES.get(feature.name, _INTEGER_BYTES)
    return feature, "float_list" if feature.dtype == "float32" else "bytes", feature.nbytes


def encode_varints(values: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Each of n integers in [0, 2**(7 * width)), or any int64 if width is 10, as a varint of exactly `width` bytes.

    >>> encode_varints(np.array([5, 300]), 3).tolist()
    [[133, 128, 0], [172, 130, 0]]
    """
    groups = np.empty((len(values), width), np.uint8)
    bits = np.asarray(values, np.int64).view(np.uint64)
    for place in range(width):  # column by column: no temporary of eight bytes a byte
        groups[:, place] = (bits >> np.uint64(7 * place)) & np.uint64(0x7F)
    groups[:, :-1] |= 0x80
    return groups


def decode_varints(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The inverse of `encode_varints`: n integers from an (n, width) array.

    >>> decode_varints(np.array([[133, 128, 0], [172, 130, 0]], np.uint8)).tolist()
    [5, 300]
    """
    groups = (raw & 0x7F).astype(np.uint64)
    bits = np.bitwise_or.reduce(groups << (7 * np.arange(raw.shape[1], dtype=np.uint64)), axis=1)
    values: NDArray[np.int64] = bits.view(np.int64)
    return values


def _varint(value: int, width: int) -> bytes:
    return encode_varints(np.array([value]), width).tobytes()


def _aligned_head(name: str, encoding: Encoding, nbytes: int, begin: int) -> bytes:
    """The head of a feature from byte `begin` on, such that its array begins, or `start` ends, at a multiple of 4."""
    tail = nbytes if encoding == "varint" else 0
    # A byte of padding may make an outer length need one more byte of its own, so that 0 to 3 do not always suffice.
    heads = (_feature_head(name, encoding, nbytes, padding) for padding in range(2 * _ALIGNMENT))
    return next(head for head in heads if (begin + len(head) + tail) % _ALIGNMENT == 0)


def _feature_head(name: str, encoding: Encoding, nbytes: int, padding: int) -> bytes:
    """The bytes of a `Features` map entry up to its `nbytes` of data, `padding` bytes longer than need be."""
    head = b""
    kind = {"bytes": b"\x0a", "float_list": b"\x12", "varint": b"\x1a"}[encoding]
    for tag in (b"\x0a", kind, b"\x12"):  # list.value, Feature.*_list, map entry.value
        head, padding = _prefix(tag, head, nbytes, padding)
    key = name.encode()
    head = b"\x0a" + _varint(len(key), 1) + key + head  # map entry.key
    return _prefix(b"\x0a", head, nbytes, padding)[0]  # Features.feature


def _prefix(tag: bytes, head: bytes, nbytes: int, padding: int) -> tuple[bytes, int]:
    length = len(head) + nbytes
    least = max(1, (length.bit_length() + 6) // 7)
    extra = min(padding, _LENGTH_BYTES - least)
    return tag + _varint(length, least + extra) + head, padding - extra


def _checksums(records: NDArray[np.uint8]) -> NDArray[np.uint32]:
    return np.fromiter(map(crc32c, records[:, _HEAD_BYTES:-_FOOT_BYTES]), np.uint32, len(records))


def _mask(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """TFRecord stores checksums rotated and shifted, so that the checksum of a file of checksums means something."""
    masked: NDArray[np.uint32] = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    return masked.astype("<u4")
