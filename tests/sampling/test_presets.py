"""Every preset's whole chain against its engine: Transformers itself, the others as transcribed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.sampling.transcriptions import llama_cpp, mlx, openvino, sglang, vllm
from tests.sampling.transcriptions.arithmetic import SURPRISE
from unspool.errors import ParameterError
from unspool.sampling.chain import ChainMemory, padded
from unspool.sampling.distribution import Distribution
from unspool.sampling.presets import DEFAULT_ORDER, PRESETS
from unspool.sampling.rules import Facts, Inputs, LogitsRow, apply_entry
from unspool.sampling.settings import MAKERS, SETTINGS, RuleSettings, compile_chain

Row = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]
Drawn = dict[str, Any]

MLX_GOLDEN = Path(__file__).parents[1] / "golden" / "mlx.json.gz"
END_IDS = (3, 7)
SIZES = {"random": 500, "peaked": 500, "flat": 16, "tied": 16}
NO_MEMORY = ChainMemory([])


def row_of(kind: str, rng: np.random.Generator) -> Row:
    size = SIZES[kind]
    match kind:
        case "random":
            row = 3 * rng.standard_normal(size)
        case "peaked":
            row = 2 * rng.standard_normal(size)
            row[rng.integers(size)] += 12
        case "flat":
            row = np.full(size, -1.75)
        case _:
            row = np.round(rng.standard_normal(size))
    return row.astype(np.float32)


def our_law(row: Row, settings: RuleSettings, prompt: Sequence[int], output: Sequence[int]) -> Distribution:
    """What the settings' chain makes of a row."""
    chain = compile_chain(settings)
    memory = chain.memory(prompt) or NO_MEMORY
    for token in output:
        memory.extend(token, Facts(SURPRISE, SURPRISE))
    candidates = LogitsRow.of(row)
    for rule, remembered in zip(chain.rules, memory.memories or [None] * len(chain.rules), strict=True):
        values = rule.values if remembered is None else remembered.values or rule.values
        inputs = Inputs() if remembered is None else Inputs(remembered.tokens, remembered.amounts)
        apply_entry(int(rule.kind), padded(values), candidates, inputs)
    return Distribution.of(candidates.ids, candidates.logits)


def some_words(rng: np.random.Generator, prompt: Sequence[int], output: Sequence[int]) -> Any:
    """A word of one token, one that the last tokens begin, and one that they do not."""
    last = [*prompt, *output][-2:]
    said = rng.integers(8, 16, 3).tolist()  # not what ends the text, which Transformers passes over
    return ((said[0],), (*last, said[1]), (*last[::-1], 1, said[2]))


def uniform(low: float, high: float) -> Callable[[np.random.Generator], float]:
    return lambda rng: float(rng.uniform(low, high))


DRAWS: dict[str, Callable[[np.random.Generator], Drawn]] = {
    "repetition_penalty": lambda rng: {"repetition_penalty": float(rng.uniform(0.8, 1.6))},
    "frequency_penalty": lambda rng: {"frequency_penalty": float(rng.uniform(-0.5, 1.0))},
    "presence_penalty": lambda rng: {"presence_penalty": float(rng.uniform(-0.5, 1.5))},
    "dry": lambda rng: {
        "dry_multiplier": float(rng.uniform(0.2, 2)),
        "dry_breakers": ((int(rng.integers(4)),),),
    },
    "no_repeat_ngram": lambda rng: {"no_repeat_ngram_size": int(rng.integers(2, 4))},
    "logit_bias": lambda rng: {"logit_bias": ((2, float(rng.uniform(-4, 4))), (9, -np.inf))},
    "allowed_tokens": lambda rng: {
        "allowed_token_ids": (0, *sorted(rng.choice(16, 11, replace=False).tolist()))
    },
    "minimum_tokens": lambda rng: {"min_tokens": int(rng.integers(1, 60))},
    "temperature": lambda rng: {"temperature": float(rng.choice([0.0, 0.3, 0.7, 1.3, 2.0]))},
    "top_n_sigma": lambda rng: {"top_n_sigma": float(rng.uniform(0.5, 3))},
    "min_p": lambda rng: {"min_p": float(rng.uniform(0.001, 0.4))},
    "top_k": lambda rng: {"top_k": int(rng.integers(1, 30))},
    "top_p": lambda rng: {"top_p": float(rng.uniform(0.2, 0.99))},
    "typical_p": lambda rng: {"typical_p": float(rng.uniform(0.2, 0.95))},
    "epsilon_cutoff": lambda rng: {"epsilon_cutoff": float(rng.uniform(1e-4, 0.02))},
    "eta_cutoff": lambda rng: {"eta_cutoff": float(rng.uniform(1e-4, 0.02))},
    "top_h": lambda rng: {"top_h": float(rng.uniform(0.2, 0.95))},
    "xtc": lambda rng: {"xtc_probability": 1.0, "xtc_threshold": float(rng.uniform(0.02, 0.3))},
    "adaptive_p": lambda rng: {"adaptive_target": float(rng.uniform(0.1, 0.9))},
}
"""Random settings of each rule but bad words, which depend on the tokens, and mirostat, which has a test."""


def draw(
    engine: str, rng: np.random.Generator, leave_out: Sequence[str] = ()
) -> tuple[RuleSettings, Any, Any]:
    """Settings of about half of an engine's rules, a prompt and an output."""
    prompt = rng.integers(0, 16, int(rng.integers(2, 90))).tolist()
    output = rng.integers(0, 16, int(rng.integers(0, 40))).tolist()
    settings: Drawn = {"end_ids": END_IDS, "order": engine}
    for name in PRESETS[engine].order:
        if name in DRAWS and name not in leave_out and rng.random() < 0.5:
            settings |= DRAWS[name](rng)
    if "bad_words" in PRESETS[engine].order and rng.random() < 0.5:
        settings["bad_words"] = some_words(rng, prompt, output)
    return RuleSettings(**settings), prompt, output


def assert_same_law(expected: Probabilities, law: Distribution, what: object) -> None:
    assert law.ids.tolist() == np.flatnonzero(expected).tolist(), what
    np.testing.assert_allclose(law.probabilities, expected[law.ids], atol=1e-6, rtol=0, err_msg=str(what))


TRANSCRIBED = {"vllm": vllm, "sglang": sglang, "llama.cpp": llama_cpp, "openvino": openvino, "mlx": mlx}


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("engine", TRANSCRIBED)
def test_a_presets_law_is_that_of_its_engines_source(engine: str, kind: str) -> None:
    rng = np.random.default_rng([len(engine), len(kind), 5])
    # mlx-lm's XTC keeps all that tie with the last top choice; ours does as llama.cpp and keeps one.
    leave_out = ["xtc"] if engine == "mlx" and kind in ("flat", "tied") else []
    compared = 0
    for _ in range(150):
        row = row_of(kind, rng)
        settings, prompt, output = draw(engine, rng, leave_out)
        if engine == "llama.cpp" and settings.min_tokens:
            settings = replaced(settings, min_tokens=None, suppress_end=True)
        expected = TRANSCRIBED[engine].law(row, settings, prompt, output)
        assert_same_law(expected, our_law(row, settings, prompt, output), settings)
        compared += 1
    assert compared > 100


def replaced(settings: RuleSettings, **changes: Any) -> RuleSettings:
    return RuleSettings(**{**settings.__dict__, **changes})


def test_the_mlx_presets_law_is_that_of_mlx_lms_own_sampler() -> None:
    golden = json.loads(gzip.decompress(MLX_GOLDEN.read_bytes()))
    assert len(golden["cases"]) == 200
    for case in golden["cases"]:
        given = {**case["settings"], "xtc_probability": float("xtc_threshold" in case["settings"])}
        given["logit_bias"] = tuple(map(tuple, given.get("logit_bias", ())))
        row = np.array(case["row"], np.float32)
        expected = np.zeros(len(row))
        for token, probability in case["law"]:
            expected[token] = max(probability, 1e-12)  # rounded, but kept
        law = our_law(row, RuleSettings(order="mlx", **given), case["tokens"], ())
        assert_same_law(expected, law, case["settings"])


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_in_llama_cpps_order_learns_from_the_truncated_law(version: int) -> None:
    rng = np.random.default_rng(version)
    settings = RuleSettings(
        order="llama.cpp", temperature=0.9, mirostat=version, mirostat_tau=3.0, mirostat_eta=0.4
    )
    chain = compile_chain(settings)
    memory = chain.memory(())
    assert memory is not None
    mu = 6.0
    for _ in range(12):
        row = row_of("random", rng)
        expected, ids = llama_cpp.mirostat_step(row / np.float32(0.9), settings, mu)
        candidates = LogitsRow.of(row)
        for rule, remembered in zip(chain.rules, memory.memories, strict=True):
            values = rule.values if remembered is None else remembered.values or rule.values
            apply_entry(int(rule.kind), padded(values), candidates, Inputs())
        law = Distribution.of(candidates.ids, candidates.logits)
        assert_same_law(expected, law, (version, mu))
        token = int(ids[int(rng.integers(len(ids)))])
        memory.extend(token, Facts(surprise=100.0, processed_surprise=float(-np.log(expected[token]))))
        mu -= 0.4 * (float(-np.log2(expected[token])) - 3.0)


@pytest.mark.parametrize("kind", SIZES)
def test_the_transformers_preset_is_transformers_own_processors_in_its_order(kind: str) -> None:
    torch: Any = pytest.importorskip("torch", reason="the oracle is in the extra `peers`")
    transformers: Any = pytest.importorskip("transformers", reason="the oracle is in the extra `peers`")
    rng = np.random.default_rng([len(kind), 24])
    for _ in range(60):
        row = row_of(kind, rng)
        # Of tied tokens the 100 that torch.topk gives top-H are any.
        settings, prompt, output = draw("transformers", rng, ["top_h"] if kind in ("flat", "tied") else [])
        processors = processors_of(settings, prompt, torch, transformers)
        ids = torch.tensor([[*prompt, *output]])
        scores = processors(ids, torch.tensor(row[None]))[0]
        expected = torch.softmax(scores.double(), -1).numpy()
        if settings.temperature == 0:
            expected = np.eye(len(row))[int(torch.argmax(scores))]
        assert_same_law(expected, our_law(row, settings, prompt, output), settings)


def processors_of(s: RuleSettings, prompt: Sequence[int], torch: Any, transformers: Any) -> Any:
    """What ``generate`` itself would put together for the settings."""
    config = transformers.GenerationConfig(
        do_sample=s.temperature != 0,
        num_beams=1,
        num_return_sequences=1,
        sequence_bias=[[[token], bias] for token, bias in s.logit_bias] or None,
        repetition_penalty=s.repetition_penalty,
        no_repeat_ngram_size=s.no_repeat_ngram_size,
        bad_words_ids=[list(word) for word in s.bad_words] or None,
        min_new_tokens=s.min_tokens,
        temperature=s.temperature or None,
        top_h=s.top_h,
        top_k=s.top_k,
        top_p=1.0 if s.top_p is None else s.top_p,
        min_p=s.min_p,
        typical_p=1.0 if s.typical_p is None else s.typical_p,
        epsilon_cutoff=0.0 if s.epsilon_cutoff is None else s.epsilon_cutoff,
        eta_cutoff=0.0 if s.eta_cutoff is None else s.eta_cutoff,
    )
    config._eos_token_tensor = torch.tensor(END_IDS)
    mixin = transformers.GenerationMixin
    model = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=False))
    model._merge_criteria_processor_list = lambda own, given: mixin._merge_criteria_processor_list(
        model, own, given
    )
    allowed = s.allowed_token_ids
    return mixin._get_logits_processor(
        model,
        config,
        input_ids_seq_length=len(prompt),
        prefix_allowed_tokens_fn=None if allowed is None else lambda *_: list(allowed),
        device="cpu",
    )


@pytest.mark.parametrize("engine", PRESETS)
def test_a_rule_that_an_engine_lacks_is_refused_by_name_with_its_preset(engine: str) -> None:
    drawn = {name: make(np.random.default_rng(1)) for name, make in DRAWS.items()}
    others: dict[str, Drawn] = {
        "bad_words": {"bad_words": ((1,),)},
        "mirostat": {"mirostat": 2},
        "top_a": {"top_a": 0.1},
        "tail_free": {"tail_free": 0.9},
        "p_less": {"p_less": True},
        "custom": {"logits_processors": (lambda tokens, logits: logits,)},
    }
    assert {*drawn, *others} == set(MAKERS)
    for name, settings in {**drawn, **others}.items():
        if name in PRESETS[engine].order:
            compile_chain(RuleSettings(**settings, end_ids=END_IDS, order=engine))
        else:
            with pytest.raises(ParameterError, match=f"{SETTINGS.get(name, name)} is set, but .*'{engine}'"):
                compile_chain(RuleSettings(**settings, end_ids=END_IDS, order=engine))


def test_the_default_order_has_a_place_for_every_rule() -> None:
    assert sorted(DEFAULT_ORDER) == sorted(MAKERS)


def test_an_engines_order_changes_what_is_kept() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    kept = {
        engine: len(our_law(row, RuleSettings(order=engine, temperature=4.0, min_p=0.6), (), ()).ids)
        for engine in PRESETS
    }
    # Those that flatten first keep all four: 0.25 ** (1 / 4) is 0.71.
    assert kept == {"transformers": 4, "vllm": 4, "sglang": 4, "openvino": 4, "llama.cpp": 2, "mlx": 2}


def test_top_p_is_counted_before_top_k_where_the_engine_does() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    settings: Drawn = {"top_k": 2, "top_p": 0.5}
    kept = {
        engine: our_law(row, RuleSettings(order=engine, **settings), (), ()).ids.tolist()
        for engine in ("vllm", "sglang")
    }
    # After top-k, 0.4 of 0.7 is more than half.
    assert kept == {"vllm": [0], "sglang": [0, 1]}


def test_top_p_of_exactly_p_is_enough_but_for_engines_that_must_pass_it() -> None:
    row = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    kept = {
        engine: len(our_law(row, RuleSettings(order=engine, top_p=0.5), (), ()).ids) for engine in PRESETS
    }
    assert kept == {"transformers": 1, "vllm": 1, "llama.cpp": 1, "mlx": 1, "sglang": 2, "openvino": 2}


@pytest.mark.parametrize("engine", [engine for engine in PRESETS if engine != "llama.cpp"])
def test_dynamic_temperature_is_refused_where_the_engine_lacks_it(engine: str) -> None:
    with pytest.raises(ParameterError, match=f"dynatemp_range is set, but the order of '{engine}'"):
        compile_chain(RuleSettings(order=engine, dynatemp_range=0.5))


def test_greedy_text_of_mlx_passes_over_the_exclusion_of_top_choices() -> None:
    row = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    settings: Drawn = {"temperature": 0.0, "xtc_probability": 1.0}
    assert our_law(row, RuleSettings(order="mlx", **settings), (), ()).ids.tolist() == [0]
    assert our_law(row, RuleSettings(order="llama.cpp", **settings), (), ()).ids.tolist() == [2]


def test_a_bad_word_begins_in_the_output_alone_where_the_engine_has_it_so() -> None:
    row = np.zeros(4, np.float32)
    words = ((1, 2),)
    for engine, banned in (("transformers", True), ("vllm", False)):
        settings = RuleSettings(order=engine, bad_words=words)
        assert (2 not in our_law(row, settings, (0, 1), ()).ids) == banned
        assert 2 not in our_law(row, settings, (0,), (1,)).ids
