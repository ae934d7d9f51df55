"""The reference is only worth something if it is right: laws it must obey, and files it writes."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.reference.llama import ReferenceBackend
from tests.reference.tiny import (
    TinyTokenizer,
    make_tensors,
    random_weights,
    role,
    stored_weights,
    tiny_spec,
    write_gguf,
)
from unspool.backend.base import BLOCK_SIZE, Float32Array, StepBatch
from unspool.errors import BackendError
from unspool.model.tensor import TensorType

SPEC = tiny_spec(vocab_size=96)
WEIGHTS = random_weights(SPEC)


def int32(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def run(tokens: list[int], context: int, blocks: list[int], parents: list[int] | None = None) -> StepBatch:
    """One run after ``context`` cached tokens; token i goes to the slot ``context + i`` of its blocks."""
    n = len(tokens)
    parents = list(range(-1, n - 1)) if parents is None else parents
    positions: list[int] = []
    for parent in parents:
        positions.append(context if parent < 0 else positions[parent] + 1)
    slots = [blocks[(context + i) // BLOCK_SIZE] * BLOCK_SIZE + (context + i) % BLOCK_SIZE for i in range(n)]
    return StepBatch(
        tokens=int32(*tokens),
        positions=int32(*positions),
        slots=int32(*slots),
        parents=int32(*parents),
        run_starts=int32(0, n),
        block_table=int32(*blocks)[None],
        context_lens=int32(context),
        rows=np.arange(n, dtype=np.int32),
        hidden_rows=int32(n - 1),
    )


def backend() -> ReferenceBackend:
    made = ReferenceBackend(SPEC, WEIGHTS)
    made.allocate(8)
    return made


def logits(made: ReferenceBackend, step: StepBatch) -> Float32Array:
    return made.forward(step).logits.numpy()


TOKENS = [int(t) for t in np.random.default_rng(1).integers(0, 96, 40)]
WHOLE = logits(backend(), run(TOKENS, 0, [5, 2, 7]))


@pytest.mark.parametrize("chunk", [1, 3, 16, 17])
def test_chunking_changes_no_bit(chunk: int) -> None:
    made = backend()
    parts = [logits(made, run(TOKENS[i : i + chunk], i, [0, 1, 6])) for i in range(0, len(TOKENS), chunk)]
    assert np.array_equal(np.concatenate(parts), WHOLE)


def test_a_path_of_a_draft_tree_equals_the_same_tokens_in_a_row() -> None:
    made = backend()
    made.forward(run(TOKENS[:20], 0, [0, 1, 2]))
    tree = [TOKENS[20], 9, TOKENS[21], 10, TOKENS[22]]
    found = logits(made, run(tree, 20, [0, 1, 2], parents=[-1, -1, 0, 1, 2]))
    assert np.array_equal(found[[0, 2, 4]], WHOLE[20:23])
    made.copy_slots(np.array([[22, 21], [24, 22]], dtype=np.int32))
    assert np.array_equal(logits(made, run(TOKENS[23:30], 23, [0, 1, 2])), WHOLE[23:30])


def test_a_copied_context_serves_another_branch() -> None:
    made = backend()
    made.forward(run(TOKENS[:20], 0, [0, 1]))
    pairs = [[s, s + 96] for s in range(20)]
    made.copy_slots(np.array(pairs, dtype=np.int32))
    assert np.array_equal(logits(made, run(TOKENS[20:21], 20, [6, 7])), WHOLE[20:21])


def test_every_input_matters() -> None:
    switches: dict[str, Any] = {"norm_epsilon": 0.5, "rope_theta": 10.0, "rope_dim": 8}
    for switch, value in switches.items():
        other = ReferenceBackend(tiny_spec(vocab_size=96, **{switch: value}), WEIGHTS)
        other.allocate(8)
        assert np.abs(logits(other, run(TOKENS, 0, [0, 1, 2])) - WHOLE).max() > 1e-2, switch


def test_reading_an_unwritten_slot_shows() -> None:
    assert np.isnan(logits(backend(), run([1], 3, [0]))).all()


def test_a_malformed_step_is_refused() -> None:
    made = backend()
    with pytest.raises(BackendError):
        made.forward(run([96], 0, [0]))
    with pytest.raises(BackendError):
        made.forward(run([1], 0, [8]))
    step = run([1, 2], 0, [0])
    step.parents[1] = 1
    with pytest.raises(BackendError):
        made.forward(step)


@pytest.mark.parametrize("type_", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_written_file_holds_the_stored_weights(tmp_path: Path, type_: str, tied: bool) -> None:
    spec, kind = tiny_spec(tied_embeddings=tied), TensorType[type_]
    weights = random_weights(spec)
    path = write_gguf(tmp_path / "tiny.gguf", spec, weights, kind)
    held, direct = stored_weights(weights, kind), make_tensors(weights, kind)
    reader = gguf.GGUFReader(path)
    assert {t.name for t in reader.tensors} == set(weights)
    for tensor in reader.tensors:
        decoded = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(decoded.reshape(held[tensor.name].shape), held[tensor.name])
        assert np.array_equal(tensor.data.view(np.uint8).reshape(-1), direct[role(tensor.name)].data)


def test_the_tiny_tokenizer_round_trips() -> None:
    tokenizer = TinyTokenizer(bos_id=1)
    text = "the other thing in café, 日本 🙂"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("a<|im_end|>b", add_special=False, parse_special=True)[1] == 2
    assert len(tokenizer.encode("<|im_end|>", add_special=False)) == 10
