"""GGUF files: a header reader that trusts nothing, over one read-only memory map.

A GGUF file (versions 2 and 3, little endian) is a header, padding and tensor data:

    magic "GGUF" | version u32 | tensor count u64 | metadata count u64
    metadata:  key string | type u32 | value            (string: length u64, UTF-8 bytes)
    tensors:   name string | dimensions u32 | sizes u64[dimensions] | type u32 | offset u64
    padding to the alignment | tensor data, each tensor at its offset

Every count, length, type, size and offset is compared with what is left of the file, and with a fixed
limit, before it is used; nothing is allocated on the header's word. Arrays stay in the file until they are
read: numbers as a view on the map, strings as a lazy sequence.

Source: the format's specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from unspool.errors import ModelFileError
from unspool.model.tensor import Tensor, TensorType

MAX_ENTRIES = 65_536
"""The most metadata keys, and the most tensors, that a header may hold."""
MAX_STRING_BYTES = 1 << 24
"""The longest string that a header may hold."""
MAX_ARRAY_STRINGS = 1 << 22
"""The most strings that all arrays of a header may hold together."""
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 65_536

_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]

_OTHER_TYPES = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
    34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 40: "NVFP4",
}  # fmt: skip
"""Names of the storage types that GGUF numbers and unspool cannot read."""


class StringArray(Sequence[str]):
    """An array of strings that stays in the file; each read decodes it anew."""

    def __init__(self, buffer: mmap.mmap, start: int, count: int, key: str) -> None:
        self._buffer = buffer
        self._start = start
        self._count = count
        self._key = key

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        buffer, position, read = self._buffer, self._start, _U64.unpack_from
        try:
            for _ in range(self._count):
                begin = position + 8
                position = begin + read(buffer, position)[0]
                yield buffer[begin:position].decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(
                f"the array {self._key!r} holds a string that is not UTF-8: {error}"
            ) from error

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Walks the array: for a few looks, not for a loop."""
        return list(self)[index]

    def __repr__(self) -> str:
        return f"<{self._count} strings>"


MetadataValue = int | float | bool | str | npt.NDArray[Any] | StringArray


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file whose header has been read and checked; the tensors' bytes are still in the file."""

    path: Path
    version: int
    metadata: Mapping[str, MetadataValue]
    """Scalars as Python values, arrays of numbers as read-only NumPy views, arrays of strings lazily."""
    tensors: dict[str, Tensor]
    """By name, in the file's order; ``data`` are read-only uint8 views on the map."""
    _map: mmap.mmap

    def release_pages(self) -> None:
        """Give the map's resident pages back to the system; they are read again if touched again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def read_gguf(path: Path) -> GgufFile:
    """Map the file at ``path`` and read its header.

    Raises ``ModelFileError`` if it cannot be read, is damaged or is of a kind that is not supported.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise ModelFileError(f"{path}: {size} bytes is too short for a GGUF file; fetch it again")
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        return _Header(path, buffer).read()
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from error.__cause__


class _Header:
    """A position that moves through the header, never past the end of the file."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self.position = 0
        self.array_strings = 0

    def read(self) -> GgufFile:
        version = self._version()
        tensor_count = self._entries("tensors", smallest=8 + 4 + 8 + 4 + 8)
        metadata_count = self._entries("metadata keys", smallest=8 + 4 + 1)
        metadata: dict[str, MetadataValue] = {}
        for _ in range(metadata_count):
            key = self._string("a metadata key")
            if key in metadata:
                raise ModelFileError(f"the metadata key {key!r} appears twice; the file is damaged")
            metadata[key] = self._value(key)
        placed = [self._tensor_entry() for _ in range(tensor_count)]
        tensors = self._map_tensors(placed, _alignment(metadata))
        return GgufFile(self.path, version, MappingProxyType(metadata), tensors, self.buffer)

    def _version(self) -> int:
        magic = self.buffer[:4]
        if magic != b"GGUF":
            raise ModelFileError(f"begins with {magic!r}, not with b'GGUF': this is not a GGUF file")
        self.position = 4
        version: int = self._number(_U32, "the version")
        if version in (2, 3):
            return version
        if version & 0xFFFF == 0:
            raise ModelFileError("is a big-endian GGUF file; only little-endian files are supported")
        raise ModelFileError(
            f"is GGUF version {version}; versions 2 and 3 are supported: convert the model again"
        )

    def _entries(self, what: str, smallest: int) -> int:
        count: int = self._number(_U64, f"the number of {what}")
        if count > MAX_ENTRIES or count * smallest > self.size - self.position:
            raise ModelFileError(
                f"states {count} {what}, more than {MAX_ENTRIES} or than its {self.size} bytes can hold; "
                "the file is damaged or truncated"
            )
        return count

    def _number(self, kind: struct.Struct, what: str) -> Any:
        self._need(kind.size, what)
        (value,) = kind.unpack_from(self.buffer, self.position)
        self.position += kind.size
        return value

    def _need(self, count: int, what: str) -> None:
        left = self.size - self.position
        if count > left:
            raise ModelFileError(
                f"ends within {what}: {count} bytes are needed at byte {self.position} and {left} are left; "
                "the file is damaged or truncated, fetch it again"
            )

    def _string(self, what: str) -> str:
        length = self._number(_U64, f"the length of {what}")
        if length > MAX_STRING_BYTES:
            raise ModelFileError(
                f"states a length of {length} bytes for {what}; at most {MAX_STRING_BYTES} are allowed"
            )
        self._need(length, what)
        begin, self.position = self.position, self.position + length
        try:
            return self.buffer[begin : self.position].decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{what} is not UTF-8: {error}") from error

    def _value(self, key: str) -> MetadataValue:
        kind = self._number(_U32, f"the type of {key!r}")
        if kind == _STRING:
            return self._string(repr(key))
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise ModelFileError(f"the metadata key {key!r} has the unknown type {kind}; types are 0 to 12")
        if kind == 7:
            return bool(self._number(_SCALARS[0], repr(key)))
        value: int | float = self._number(_SCALARS[kind], repr(key))
        return value

    def _array(self, key: str) -> MetadataValue:
        kind = self._number(_U32, f"the element type of {key!r}")
        count = self._number(_U64, f"the length of {key!r}")
        if kind == _STRING:
            return self._string_array(key, count)
        if kind not in _SCALARS:
            what = "arrays" if kind == _ARRAY else f"the unknown type {kind}"
            raise ModelFileError(
                f"the metadata array {key!r} holds {what}; numbers and strings are supported"
            )
        dtype = np.dtype(_SCALARS[kind].format)
        self._need(count * dtype.itemsize, f"the array {key!r}")
        array = np.frombuffer(self.buffer, np.uint8, count * dtype.itemsize, self.position)
        self.position += array.nbytes
        return array.view(dtype) if kind != 7 else array != 0

    def _string_array(self, key: str, count: int) -> StringArray:
        self._need(count * 8, f"the array {key!r}")
        self.array_strings += count
        if self.array_strings > MAX_ARRAY_STRINGS:
            raise ModelFileError(
                f"the array {key!r} has {count} strings; all arrays together may have {MAX_ARRAY_STRINGS}"
            )
        # The one hot loop of the header: two arrays of about 50,000 strings in a usual file.
        start = position = self.position
        buffer, read, last = self.buffer, _U64.unpack_from, self.size - 8
        for _ in range(count):
            if position > last:
                break
            length = read(buffer, position)[0]
            if length > MAX_STRING_BYTES:
                raise ModelFileError(
                    f"states a length of {length} bytes for a string of {key!r}; at most {MAX_STRING_BYTES}"
                )
            position += 8 + length
        else:
            if position <= self.size:
                self.position = position
                return StringArray(buffer, start, count, key)
        raise ModelFileError(
            f"ends within the array {key!r}: the file is damaged or truncated, fetch it again"
        )

    def _tensor_entry(self) -> tuple[str, TensorType, list[int], int]:
        name = self._string("a tensor's name")
        dimensions = self._number(_U32, f"the dimensions of {name!r}")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ModelFileError(
                f"the tensor {name!r} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed"
            )
        sizes = [self._number(_U64, f"the shape of {name!r}") for _ in range(dimensions)]
        number = self._number(_U32, f"the type of {name!r}")
        offset = self._number(_U64, f"the offset of {name!r}")
        return name, _tensor_type(name, number), sizes, offset

    def _map_tensors(
        self, placed: list[tuple[str, TensorType, list[int], int]], alignment: int
    ) -> dict[str, Tensor]:
        base = -(-self.position // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        ranges: list[tuple[int, int, str]] = []
        for name, kind, sizes, offset in placed:
            if name in tensors:
                raise ModelFileError(f"the tensor {name!r} appears twice; the file is damaged")
            count = _stored_bytes(name, kind, sizes)
            if offset % alignment:
                raise ModelFileError(f"the tensor {name!r} is at {offset}, no multiple of {alignment}")
            if base + offset + count > self.size:
                raise ModelFileError(
                    f"the tensor {name!r} takes bytes {base + offset} to {base + offset + count}, and the "
                    f"file has {self.size}; it is damaged or truncated, fetch it again"
                )
            ranges.append((offset, offset + count, name))
            data = np.frombuffer(self.buffer, np.uint8, count, base + offset)
            tensors[name] = Tensor(name, kind, math.prod(sizes[1:]), sizes[0], data)
        _refuse_overlap(ranges)
        return tensors


def _alignment(metadata: Mapping[str, MetadataValue]) -> int:
    """The file's alignment: a power of two from 8 to 65536."""
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ModelFileError(
            f"general.alignment is {alignment!r}; a power of two from 8 to {MAX_ALIGNMENT} is allowed"
        )
    return alignment


def _tensor_type(name: str, number: int) -> TensorType:
    try:
        return TensorType(number)
    except ValueError:
        kind = _OTHER_TYPES.get(number, f"the unknown type {number}")
        supported = ", ".join(known.name for known in TensorType)
        raise ModelFileError(
            f"the tensor {name!r} is stored as {kind}, which cannot be read; supported: {supported}"
        ) from None


def _stored_bytes(name: str, kind: TensorType, sizes: list[int]) -> int:
    """Bytes that a tensor of ``sizes`` (innermost first) takes in storage."""
    if min(sizes) < 1 or sizes[0] % kind.block_elements:
        raise ModelFileError(
            f"the tensor {name!r} has the shape {sizes}; {kind.name} needs sizes of at least 1 and rows that "
            f"are multiples of {kind.block_elements}"
        )
    return math.prod(sizes) // kind.block_elements * kind.block_bytes


def _refuse_overlap(ranges: list[tuple[int, int, str]]) -> None:
    """No byte belongs to two tensors, so that all tensors together are no larger than the file."""
    ranges.sort()
    for (_, end, name), (begin, _, other) in pairwise(ranges):
        if begin < end:
            raise ModelFileError(f"the tensors {name!r} and {other!r} overlap; the file is damaged")
