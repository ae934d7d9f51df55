"""The header reader: it reads what the ``gguf`` package writes, and survives what nobody should write."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.model import files
from unspool.errors import ModelFileError
from unspool.model.gguf import MAX_STRING_BYTES, StringArray, read_gguf
from unspool.model.tensor import TensorType


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama's file, all of whose metadata types occur."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    values = files.metadata()
    values |= {"test.bools": [True, False], "test.floats": [0.5, 1.5], "test.negative": [-1, 2]}
    kinds = {"blk.0.ffn_up.weight": gguf.GGMLQuantizationType.Q4_1}
    return files.write(path, values, quantized=kinds)


def entry(kind: int, value: bytes, key: bytes = b"k") -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def tensor(name: bytes, sizes: list[int], kind: int = 0, offset: int = 0) -> bytes:
    head = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(sizes))
    return head + struct.pack(f"<{len(sizes)}Q", *sizes) + struct.pack("<IQ", kind, offset)


def build(
    entries: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    *,
    counts: tuple[int, int] | None = None,
    version: int = 3,
    data: bytes = bytes(4096),
) -> bytes:
    entries, tensors = entries or [], tensors or []
    tensor_count, entry_count = counts or (len(tensors), len(entries))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, entry_count)
    return head + b"".join(entries) + b"".join(tensors) + data


def read(tmp_path: Path, content: bytes) -> Any:
    path = tmp_path / "file.gguf"
    path.write_bytes(content)
    return read_gguf(path)


def test_reads_what_the_gguf_package_writes(small: Path) -> None:
    ours, theirs = read_gguf(small), gguf.GGUFReader(small)
    for key, stored in theirs.fields.items():
        if key.startswith("GGUF."):
            continue
        value: Any = ours.metadata[key]
        if isinstance(value, (StringArray, np.ndarray)):
            value = list(value)
        assert value == stored.contents(), key
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert int(mine.type) == int(tensor.tensor_type)
        assert (mine.columns, mine.rows) == (tensor.shape[0], int(np.prod(tensor.shape[1:])))
        assert np.array_equal(mine.data, tensor.data.view(np.uint8).reshape(-1))
        assert not mine.data.flags.writeable


def test_a_storage_type_is_the_size_that_the_gguf_package_says() -> None:
    for kind in TensorType:
        assert (kind.block_elements, kind.block_bytes) == gguf.GGML_QUANT_SIZES[
            gguf.GGMLQuantizationType(kind)
        ]


def test_version_2_reads_like_version_3(small: Path, tmp_path: Path) -> None:
    content = bytearray(small.read_bytes())
    content[4] = 2
    file = read(tmp_path, bytes(content))
    assert file.version == 2
    assert dict(file.metadata)["llama.block_count"] == files.LAYERS


def test_pages_can_be_released_and_read_again(small: Path) -> None:
    file = read_gguf(small)
    before = file.tensors["token_embd.weight"].data.copy()
    file.release_pages()
    assert np.array_equal(file.tensors["token_embd.weight"].data, before)


def test_scalars_of_every_type(tmp_path: Path) -> None:
    forms = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    negative = {1, 3, 5, 11}
    scalars = {kind: (form, -kind if kind in negative else kind == 7 or kind) for kind, form in forms.items()}
    entries = [
        entry(kind, struct.pack("<" + form, value), str(kind).encode())
        for kind, (form, value) in scalars.items()
    ]
    assert dict(read(tmp_path, build(entries)).metadata) == {str(k): v for k, (_, v) in scalars.items()}


U64_MAX = (1 << 64) - 1
BROKEN = {
    "empty": (b"", "too short"),
    "not a GGUF file": (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version 1": (build(version=1), "version 1"),
    "version 4": (build(version=4), "version 4"),
    "huge tensor count": (build(counts=(U64_MAX, 0)), "18446744073709551615 tensors"),
    "huge key count": (build(counts=(0, 1 << 40)), "1099511627776 metadata keys"),
    "huge key": (build([struct.pack("<Q", U64_MAX) + b"k"]), "at most"),
    "key past the end": (build([struct.pack("<Q", 1 << 20) + b"k"]), "damaged or truncated"),
    "huge string": (build([entry(8, struct.pack("<Q", 1 << 62))]), "at most"),
    "string past the end": (build([entry(8, struct.pack("<Q", MAX_STRING_BYTES))]), "damaged or truncated"),
    "huge array": (build([entry(9, struct.pack("<IQ", 4, 1 << 61))]), "damaged or truncated"),
    "huge string array": (build([entry(9, struct.pack("<IQ", 8, 1 << 61))]), "damaged or truncated"),
    "string array past the end": (
        build([entry(9, struct.pack("<IQQ", 8, 2, 4090))]),
        "damaged or truncated",
    ),
    "huge string in an array": (build([entry(9, struct.pack("<IQQ", 8, 1, U64_MAX))]), "at most"),
    "array of arrays": (build([entry(9, struct.pack("<IQ", 9, 1))]), "holds arrays"),
    "array of an unknown type": (build([entry(9, struct.pack("<IQ", 77, 1))]), "unknown type 77"),
    "unknown type": (build([entry(13, b"")]), "unknown type 13"),
    "key twice": (build([entry(0, b"\1"), entry(0, b"\2")]), "twice"),
    "key that is not UTF-8": (build([entry(0, b"\1", b"\xff\xfe")]), "not UTF-8"),
    "value that is not UTF-8": (build([entry(8, struct.pack("<Q", 1) + b"\xff")]), "not UTF-8"),
    "alignment 0": (build([entry(4, struct.pack("<I", 0), b"general.alignment")]), "power of two"),
    "alignment 24": (build([entry(4, struct.pack("<I", 24), b"general.alignment")]), "power of two"),
    "alignment 2**31": (build([entry(4, struct.pack("<I", 1 << 31), b"general.alignment")]), "power of two"),
    "alignment text": (build([entry(8, struct.pack("<Q", 0), b"general.alignment")]), "power of two"),
    "no dimensions": (build(tensors=[tensor(b"t", [])]), "0 dimensions"),
    "five dimensions": (build(tensors=[tensor(b"t", [1] * 5)]), "5 dimensions"),
    "size 0": (build(tensors=[tensor(b"t", [0, 4])]), "at least 1"),
    "huge sizes": (build(tensors=[tensor(b"t", [U64_MAX] * 4)]), "damaged or truncated"),
    "sizes that wrap to nothing": (build(tensors=[tensor(b"t", [1 << 32, 1 << 32])]), "damaged or truncated"),
    "row of part of a block": (build(tensors=[tensor(b"t", [33], kind=2)]), "multiples of 32"),
    "a known type": (build(tensors=[tensor(b"t", [256], kind=16)]), "stored as IQ2_XXS"),
    "no known type": (build(tensors=[tensor(b"t", [256], kind=999)]), "unknown type 999"),
    "odd offset": (build(tensors=[tensor(b"t", [8], offset=8)]), "multiple of 32"),
    "offset past the end": (build(tensors=[tensor(b"t", [8], offset=1 << 20)]), "damaged or truncated"),
    "offset that wraps": (build(tensors=[tensor(b"t", [8], offset=U64_MAX - 31)]), "damaged or truncated"),
    "data past the end": (build(tensors=[tensor(b"t", [1025])]), "damaged or truncated"),
    "tensor twice": (build(tensors=[tensor(b"t", [8]), tensor(b"t", [8], offset=32)]), "twice"),
    "overlap": (build(tensors=[tensor(b"t", [16]), tensor(b"u", [8], offset=32)]), "overlap"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_wrong_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        read(tmp_path, content)


def test_a_tensor_may_end_where_the_file_ends(tmp_path: Path) -> None:
    content = build(tensors=[tensor(b"t", [8])], data=b"")
    content += bytes(-len(content) % 32) + bytes(32)
    assert read(tmp_path, content).tensors["t"].data.nbytes == 32
    with pytest.raises(ModelFileError, match="truncated"):
        read(tmp_path, content[:-1])


def test_a_missing_file_or_a_folder_is_said(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelFileError, match="cannot be read"):
            read_gguf(path)


def test_every_truncation_is_refused(small: Path, tmp_path: Path) -> None:
    content = small.read_bytes()
    header = content.index(b"blk.1.ffn_down.weight") + 100
    for length in [*range(0, header, 7), len(content) - 1]:
        with pytest.raises(ModelFileError):
            read(tmp_path, content[:length])


def mutated(content: bytes, draw: random.Random, header: int) -> bytes:
    """``content`` with its header damaged in one to four places."""
    damaged = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(header)
        kind = draw.random()
        if kind < 0.4:
            damaged[at] ^= 1 << draw.randrange(8)
        elif kind < 0.6:
            damaged[at] = draw.randrange(256)
        elif kind < 0.9:
            large = draw.choice(
                [0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 32, 1 << 40, 1 << 63, U64_MAX, len(content)]
            )
            damaged[at : at + 8] = struct.pack("<Q", large)
        else:
            del damaged[at : at + draw.randint(1, 16)]
    return bytes(damaged)


def test_damaged_headers_parse_or_are_refused_without_large_allocations(small: Path, tmp_path: Path) -> None:
    """2,000 mutations: a result or a ModelFileError; never more memory than a few times the file's."""
    content = small.read_bytes()
    header = content.index(b"blk.1.ffn_down.weight") + 100
    draw = random.Random(1)
    path = tmp_path / "damaged.gguf"
    refused = 0
    tracemalloc.start()
    try:
        for _ in range(2000):
            path.write_bytes(mutated(content, draw, header))
            tracemalloc.reset_peak()
            start = tracemalloc.get_traced_memory()[0]
            try:
                file = read_gguf(path)
                for value in file.metadata.values():
                    if isinstance(value, StringArray):
                        list(value)
                assert all(t.data.nbytes <= len(content) for t in file.tensors.values())
            except ModelFileError:
                refused += 1
            assert tracemalloc.get_traced_memory()[1] - start < 4 * len(content) + (1 << 20)
    finally:
        tracemalloc.stop()
    assert 200 < refused < 2000


@pytest.mark.model
def test_the_default_model_reads(default_model_path: Path) -> None:
    file = read_gguf(default_model_path)
    assert len(file.tensors) == 272
    assert len(list(file.metadata["tokenizer.ggml.tokens"])) == 49152  # type: ignore[arg-type]
    assert sum(t.data.nbytes for t in file.tensors.values()) < default_model_path.stat().st_size
