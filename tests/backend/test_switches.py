"""Each switch of a spec computes what the reference defines, shows in the logits, keeps rows invariant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.backend.steps import advance, make_sequences, one_by_one, step_of
from tests.backend.test_cpu import path_to, run_in_random_chunks, tree_rows
from tests.reference.decoder import ACTIVATIONS, Decoder, as_tensors, biases, draw, gelu, shapes
from tests.reference.llama import ROUNDINGS
from tests.reference.tiny import Weights, stored_weights, tiny_spec
from unspool import _native
from unspool.backend.base import Float32Array
from unspool.backend.cpu import CpuBackend
from unspool.cache.size import CACHE_TYPES, CacheType
from unspool.errors import BackendError
from unspool.model.spec import LayerSpec, ModelSpec, Rotary, inverse_frequencies
from unspool.model.tensor import TensorType

SETS = _native.instruction_sets()
LENGTH = 40
HALVES = Rotary("halves", inverse_frequencies(16, 10000.0))
SLOW = Rotary("halves", inverse_frequencies(16, 300.0))
PARTIAL = Rotary("interleaved", inverse_frequencies(4, 10000.0))
PARTIAL_HALVES = Rotary("halves", inverse_frequencies(6, 10000.0))
UNROTATED = (LayerSpec(rotary=None), LayerSpec())

SWITCHES: dict[str, dict[str, Any]] = {
    "halves": {"rotaries": (HALVES,)},
    "partial": {"rotaries": (PARTIAL,)},
    "partial halves": {"rotaries": (PARTIAL_HALVES,)},
    "frequencies": {"rotaries": (replace(HALVES, inverse_frequencies=(1.0, 0.5, 0.1, 0.03)),)},
    "factor": {"rotaries": (Rotary("interleaved", inverse_frequencies(16, 10000.0), factor=1.3),)},
    "a rotary embedding for each layer": {
        "rotaries": (SLOW, PARTIAL_HALVES),
        "layers": (LayerSpec(rotary=1), LayerSpec(rotary=0)),
    },
    "a layer without rotary embedding": {"layers": UNROTATED},
    "window": {"layers": (LayerSpec(window=16), LayerSpec())},
    "layer norm": {"norm": "layer"},
    "norms after too": {"norm_after": True},
    "norms after only": {"norm_first": False, "norm_after": True},
    "norms of heads": {"query_key_norm": "head"},
    "norms of whole projections": {"query_key_norm": "whole"},
    "norms of heads, halves": {"query_key_norm": "head", "rotaries": (HALVES,)},
    "norms of whole projections, halves": {"query_key_norm": "whole", "rotaries": (PARTIAL_HALVES,)},
    "gelu by tanh": {"activation": "gelu_tanh"},
    "gelu": {"activation": "gelu"},
    "no gate": {"gated": False},
    "no gate, gelu": {"gated": False, "activation": "gelu"},
    "learned positions": {"learned_positions": 64},
    "parallel": {"parallel_residual": True},
    "parallel, norms after too": {"parallel_residual": True, "norm_after": True},
    "attention scale": {"attention_scale": 0.1},
    "attention cap": {"attention_softcap": 1.0},
    "final cap": {"final_softcap": 1.0},
    "embedding scale": {"embedding_scale": 8.0},
    "residual scale": {"residual_scale": 0.3},
    "logit scale": {"logit_scale": 0.25},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {
        "norm_after": True,
        "activation": "gelu_tanh",
        "attention_softcap": 1.0,
        "final_softcap": 1.0,
        "embedding_scale": 8.0,
        "rotaries": (HALVES,),
        "layers": (LayerSpec(window=16), LayerSpec()),
    },
    "gemma3": {
        "norm_after": True,
        "query_key_norm": "head",
        "activation": "gelu_tanh",
        "rotaries": (HALVES, SLOW),
        "layers": (LayerSpec(window=16, rotary=1), LayerSpec(rotary=0)),
    },
    "olmo2": {"norm_first": False, "norm_after": True, "query_key_norm": "whole", "rotaries": (HALVES,)},
    "gpt2": {
        "norm": "layer",
        "activation": "gelu_tanh",
        "gated": False,
        "learned_positions": 64,
        "rotaries": (),
        "layers": (LayerSpec(rotary=None),) * 2,
    },
    "phi": {
        "norm": "layer",
        "activation": "gelu",
        "gated": False,
        "parallel_residual": True,
        "rotaries": (PARTIAL_HALVES,),
        "tied_embeddings": False,
    },
    "granite": {"embedding_scale": 3.0, "residual_scale": 0.3, "logit_scale": 0.2, "attention_scale": 0.1},
    "sizes of 48": {"hidden_size": 48, "intermediate_size": 80, "gated": False, "norm": "layer"},
}
INTEGER_FAMILIES = [name for name in FAMILIES if FAMILIES[name].get("hidden_size", 64) % 32 == 0]
"""Those whose rows are groups of 32."""
BIASES: dict[str, dict[str, Any]] = {
    "query": {},
    "key": {},
    "value": {},
    "output": {},
    "gate": {},
    "up": {},
    "down": {},
    "head": {},
    "attention_norm": {},
    "feed_forward_norm": {"norm": "layer"},
    "final_norm": {"norm": "layer"},
    "attention_post_norm": {"norm_after": True},
    "feed_forward_post_norm": {"norm_after": True, "norm": "layer"},
}


def spec_of(changes: Mapping[str, Any]) -> ModelSpec:
    return tiny_spec(vocab_size=45, **changes)


def make(
    spec: ModelSpec,
    weights: Weights,
    type_: TensorType = TensorType.F32,
    threads: int = 2,
    instruction_set: str | None = None,
    cache_type: CacheType = "float32",
) -> CpuBackend:
    backend = CpuBackend(
        spec,
        as_tensors(weights, type_),
        threads=threads,
        instruction_set=instruction_set,
        cache_type=cache_type,
    )
    backend.allocate(32)
    return backend


def rows_of(backend: CpuBackend) -> Float32Array:
    (branch,) = make_sequences([LENGTH], backend.spec.vocab_size)
    return backend.forward(step_of([(branch, LENGTH)])).logits.numpy().copy()


def expected_rows(spec: ModelSpec, weights: Weights) -> Float32Array:
    (branch,) = make_sequences([LENGTH], spec.vocab_size)
    return Decoder(spec, weights).logits(branch.tokens)


def through_q8_0(matrix: Float32Array) -> Float32Array:
    """What a matrix in Q8_0 really holds."""
    (stored,) = stored_weights({"matrix": matrix}, TensorType.Q8_0).values()
    return stored


def distance(ours: Float32Array, theirs: Float32Array) -> float:
    """The largest difference, as a share of the largest logit."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_equals_the_reference_and_shows(switch: str) -> None:
    spec, plain = spec_of(SWITCHES[switch]), spec_of({})
    weights = draw(shapes(spec))
    got = rows_of(make(spec, weights))
    assert distance(got, expected_rows(spec, weights)) < 1e-5
    without = rows_of(make(plain, draw(shapes(plain))))
    assert np.abs(got - without).max() > 1e-2


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_switches_together_equal_the_reference(family: str, instruction_set: str) -> None:
    """With every bias that there may be."""
    spec = spec_of(FAMILIES[family])
    weights = draw(shapes(spec) | biases(spec))
    got = rows_of(make(spec, weights, instruction_set=instruction_set))
    assert distance(got, expected_rows(spec, weights)) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_each_switch_of_a_family_shows(family: str) -> None:
    """As the others are: none is lost where another is on."""
    spec = spec_of(FAMILIES[family])
    got = rows_of(make(spec, draw(shapes(spec))))
    for field in FAMILIES[family]:
        if field in ("rotaries", "layers", "hidden_size", "intermediate_size", "tied_embeddings"):
            continue
        flipped = replace(spec, **{field: getattr(tiny_spec(), field)})
        assert np.abs(rows_of(make(flipped, draw(shapes(flipped)))) - got).max() > 1e-2, field


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_is_added_where_there_is_one(name: str) -> None:
    spec = spec_of(BIASES[name])
    weights = draw(shapes(spec))
    for i, role in enumerate(r for r in biases(spec) if r.rpartition(".")[2] == f"{name}_bias"):
        biased = weights | draw({role: biases(spec)[role]})
        got = rows_of(make(spec, biased))
        assert distance(got, expected_rows(spec, biased)) < 1e-5, role
        assert np.abs(got - rows_of(make(spec, weights))).max() > 1e-2, role
        assert i < 2


@pytest.mark.parametrize(
    ("switch", "type_"),
    [(switch, TensorType.F32) for switch in (*SWITCHES, *FAMILIES)]
    + [(switch, TensorType.Q8_0) for switch in (*SWITCHES, *INTEGER_FAMILIES)],
    ids=lambda value: value.name if isinstance(value, TensorType) else value,
)
def test_rows_do_not_depend_on_how_they_are_computed(switch: str, type_: TensorType) -> None:
    """Whole, in chunks, one by one, in company, by any number of threads and any instruction set."""
    spec = spec_of((SWITCHES | FAMILIES)[switch])
    weights = draw(shapes(spec) | biases(spec))
    lengths = [LENGTH, 1, 19]
    expected = one_by_one(make(spec, weights, type_, threads=1), make_sequences(lengths, spec.vocab_size))
    for n, instruction_set in enumerate(SETS):
        for threads, largest in [(1 + n % 2, LENGTH), (3, 7)]:
            backend = make(spec, weights, type_, threads, instruction_set)
            branches = make_sequences(lengths, spec.vocab_size)
            run_in_random_chunks(backend, branches, largest)
            for branch, rows in zip(branches, expected, strict=True):
                assert np.stack(branch.logits).tobytes() == rows.tobytes(), (instruction_set, threads)


@pytest.mark.parametrize("family", INTEGER_FAMILIES)
def test_integer_products_come_close_to_the_reference(family: str) -> None:
    """With every bias; norms, biases and learned positions stay in float32."""
    spec = spec_of(FAMILIES[family])
    weights = draw(shapes(spec) | biases(spec))
    stored = {
        role: values if values.ndim == 1 or role == "positions" else through_q8_0(values)
        for role, values in weights.items()
    }
    expected = expected_rows(spec, stored)
    got = rows_of(make(spec, weights, TensorType.Q8_0))
    assert np.abs(got - expected).mean() / np.abs(expected).mean() < 0.03


@pytest.mark.parametrize("cache_type", ["float32", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_path_of_a_draft_tree_has_the_rows_that_it_has_alone(family: str, cache_type: CacheType) -> None:
    spec = spec_of(FAMILIES[family])
    backend = CpuBackend(
        spec, as_tensors(draw(shapes(spec) | biases(spec))), threads=2, cache_type=cache_type
    )
    backend.allocate(64)
    (branch,) = make_sequences([30], spec.vocab_size)
    advance(backend, [(branch, 21)])
    tokens, parents = np.array([9, 10, 11, 12, 13], np.int32), [-1, 0, 0, 2, -1]
    rows = tree_rows(backend, branch, 21, tokens, parents)
    for node in range(len(parents)):
        path = path_to(node, parents)
        alone = replace(
            branch, tokens=np.concatenate([branch.tokens[:21], tokens[path]]), cached=21, logits=[]
        )
        advance(backend, [(alone, len(path))])
        assert alone.logits[-1].tobytes() == rows[node].tobytes(), node


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_cut_off_after_its_first_layer_gives_the_rows_of_that_exit(family: str) -> None:
    spec = spec_of(FAMILIES[family])
    weights = draw(shapes(spec) | biases(spec))
    (branch,) = make_sequences([LENGTH], spec.vocab_size)
    step = step_of([(branch, LENGTH)])
    exits = np.ones(LENGTH, np.int32)
    early = make(spec, weights).forward(replace(step, exits=exits)).logits.numpy()
    cut_off = make(replace(spec, num_layers=1, layers=spec.layers[:1]), weights)
    assert rows_of(cut_off).tobytes() == early.tobytes()


@pytest.mark.parametrize("cache_type", CACHE_TYPES)
@pytest.mark.parametrize("norm", ["none", "head", "whole"])
def test_keys_are_rounded_after_their_norm_and_rotation(norm: str, cache_type: CacheType) -> None:
    """On average: a number halfway between two of a type may be rounded to the other one."""
    spec = spec_of({"query_key_norm": norm, "rotaries": (HALVES,)})
    weights = draw(shapes(spec) | biases(spec))
    (branch,) = make_sequences([LENGTH], spec.vocab_size)
    expected = Decoder(spec, weights, rounding=ROUNDINGS[cache_type]).logits(branch.tokens)
    exact = Decoder(spec, weights).logits(branch.tokens)
    got = rows_of(make(spec, weights, cache_type=cache_type))
    if cache_type == "float32":
        assert distance(got, exact) < 1e-5
    else:
        assert 5 * np.abs(got - expected).mean() < np.abs(got - exact).mean()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_precise_and_the_same_everywhere(activation: str) -> None:
    """A feed-forward of one value: the logits are activations of the embeddings, small and large."""
    spec = tiny_spec(
        vocab_size=400,
        num_layers=1,
        hidden_size=16,
        intermediate_size=16,
        num_heads=1,
        num_kv_heads=1,
        norm_first=False,
        gated=False,
        activation=activation,
        tied_embeddings=False,
        norm_epsilon=1.0,
    )
    weights = {role: np.zeros(shape, np.float32) for role, shape in shapes(spec).items()}
    values = np.concatenate([np.linspace(-15, 15, 201), np.geomspace(1e-6, 1e6, 99), [-1e6], np.zeros(99)])
    inner = values.astype(np.float32)
    weights["embedding"][:, 0] = inner
    weights["layers.0.up"][0, 0] = 1  # inner[0] = x
    weights["layers.0.down"][1, 0] = 1  # residual[1] = activation(x)
    weights["final_norm"][:] = 1
    weights["head"][0, 1] = 1
    tokens = np.arange(256, dtype=np.int32)
    (branch,) = make_sequences([256], spec.vocab_size)
    step = step_of([(replace(branch, tokens=tokens), 256)], hidden=True)
    seen = set()
    for instruction_set in SETS:
        hidden = make(spec, weights, instruction_set=instruction_set).forward(step).hidden
        seen.add(hidden.tobytes())
        exact = ACTIVATIONS[activation](inner[:256].astype(np.float64))
        x = inner[:256].astype(np.float64)
        root = np.sqrt((x**2 + exact**2) / 16 + 1)
        np.testing.assert_allclose(hidden[:, 1], exact / root, rtol=2e-6, atol=3e-7)
    assert len(seen) == 1


def test_gelu_by_erf_and_by_tanh_differ() -> None:
    x = np.linspace(-4, 4, 101)
    assert 1e-4 < np.abs(gelu(x) - ACTIVATIONS["gelu_tanh"](x)).max() < 1e-3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "batch"}, "norm is 'batch'; allowed are rms, layer"),
        ({"activation": "relu"}, "allowed are silu, gelu_tanh, gelu"),
        ({"query_key_norm": "heads"}, "allowed are none, head, whole"),
        ({"final_softcap": -1.0}, "cap on logits"),
        ({"logit_scale": float("nan")}, "scales must be finite"),
        ({"layers": (LayerSpec(rotary=1), LayerSpec())}, "rotary embedding must be one of"),
        ({"rotaries": ()}, "there is no rotary embedding"),
        ({"rotaries": (replace(HALVES, factor=float("inf")),)}, "finite"),
        ({"learned_positions": -1}, "learned positions"),
        ({"learned_positions": 8}, "no tensor for 'positions'"),
        ({"gated": False}, "'layers.0.gate' has no use"),
        ({"norm_after": True}, "no tensor for 'layers.0.attention_post_norm'"),
        ({"query_key_norm": "head"}, "no tensor for 'layers.0.query_norm'"),
        ({"parallel_residual": True}, "'layers.0.feed_forward_norm' has no use"),
    ],
)
def test_switches_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    spec = spec_of({})
    with pytest.raises(BackendError, match=message):
        CpuBackend(replace(spec, **changes), as_tensors(draw(shapes(spec))))


def test_a_bias_that_is_damaged_or_of_another_size_is_refused() -> None:
    spec = spec_of({})
    weights = draw(shapes(spec))
    for bias, message in [
        (np.zeros(8, np.float32), "need 1 x 32"),
        (np.full(32, np.nan, np.float32), "not finite"),
    ]:
        with pytest.raises(BackendError, match=message):
            make(spec, weights | {"layers.1.key_bias": bias})


def test_positions_beyond_the_learned_ones_are_refused() -> None:
    spec = spec_of({"learned_positions": LENGTH - 1})
    with pytest.raises(BackendError, match=r"positions\[39\] is 39, allowed are 0 to 38"):
        rows_of(make(spec, draw(shapes(spec))))
