"""Every rule does what it says from the front door on: what is drawn, and from which law."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from unspool import LLM, Generation, ParameterError, RowError, SamplingParams, UnspoolError

Float64Array = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]

PROMPT = "the inner other"
A, B, C = 100, 101, 102
"""Of the tiny vocabulary: the tokens of a, b and c."""
END, OTHER_END = 0, 2
"""Its end-of-text tokens."""
SEEDS = range(12)


def softmax(z: Float64Array) -> Float64Array:
    p: Float64Array = np.exp(z - z.max())
    p /= p.sum()
    return p


def contains(ids: Sequence[int], word: Sequence[int]) -> bool:
    return any(list(ids[at : at + len(word)]) == list(word) for at in range(len(ids)))


def outputs(llm: LLM, **settings: Any) -> list[list[int]]:
    """What comes under each seed."""
    made = llm.generate([PROMPT] * len(SEEDS), [SamplingParams(seed=seed, **settings) for seed in SEEDS])
    return [generation.token_ids for generation in made]


def rows_of(llm: LLM, made: Generation, prompt: str = PROMPT) -> list[Float64Array]:
    """The row that each generated token was drawn from, before any rule."""
    ids = llm.tokenizer.encode(prompt)
    rows = llm.logits(ids + made.token_ids)[len(ids) - 1 : -1]
    return list(rows.astype(np.float64))


# Edits


def test_a_bad_word_never_appears(llm: LLM) -> None:
    among: dict[str, Any] = {"allowed_token_ids": [A, B, C], "max_tokens": 100}
    words = ["ab", [C, C, A], "b c", [B, B]]
    sequences = [[A, B], [C, C, A], [B, B]]
    free = outputs(llm, **among)
    assert all(any(contains(ids, word) for ids in free) for word in sequences)
    barred = outputs(llm, bad_words=words, **among)
    assert not any(contains(ids, word) for ids in barred for word in sequences)
    assert any(contains(ids, [B, C]) for ids in barred)  # "b c" is another word


def test_a_bad_word_of_one_token_never_appears_with_a_space_before_it_or_without(llm: LLM) -> None:
    the, spaced = llm.tokenizer.encode("the"), llm.tokenizer.encode(" the")
    assert (len(the), len(spaced)) == (1, 1)
    liked: dict[str, Any] = {"logit_bias": {the[0]: 6.0, spaced[0]: 6.0}, "max_tokens": 20}
    assert {*the, *spaced} < {token for ids in outputs(llm, **liked) for token in ids}
    barred = outputs(llm, bad_words=["the"], **liked)
    assert not {*the, *spaced} & {token for ids in barred for token in ids}
    again = outputs(llm, bad_words=[" the"], **liked)
    assert again == barred


def test_a_bad_word_may_begin_in_the_prompt(llm: LLM) -> None:
    law = llm.next_token("xa", bad_words=[[A, B]])
    assert law.probability(B) == 0 < law.probability(C)
    assert llm.next_token("xa", bad_words=[[A, B]], order="vllm").probability(B) > 0  # in the output alone


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (["a", "  "], "bad_words holds '  ': there is nothing in it but spaces"),
        (["\ud83d"], r"bad_words holds .*: the text holds half a surrogate pair"),
        ([""], "bad_words must be"),
        ("um", "bad_words must be"),
    ],
)
def test_a_bad_word_that_is_none_is_refused(llm: LLM, bad: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        llm.generate(PROMPT, bad_words=bad)


def test_a_sequence_breaker_that_is_no_text_is_refused(llm: LLM) -> None:
    with pytest.raises(ParameterError, match=r"dry_sequence_breakers holds .*: the text holds half"):
        llm.generate(PROMPT, dry_multiplier=0.8, dry_sequence_breakers=["\udcff"])


@pytest.mark.parametrize("end", [{}, {"stop_token_ids": [B]}])
def test_no_end_comes_before_min_tokens(llm: LLM, end: dict[str, Any]) -> None:
    among: dict[str, Any] = {"allowed_token_ids": [A, B, END], "max_tokens": 30, **end}
    assert min(map(len, outputs(llm, **among))) < 5
    lengths = [len(ids) for ids in outputs(llm, min_tokens=5, **among)]
    assert min(lengths) == 5
    assert max(lengths) > 5


def test_min_tokens_counts_the_output_and_changes_nothing_after(llm: LLM) -> None:
    assert llm.next_token(PROMPT, min_tokens=1).probability(END) == 0
    assert llm.next_token(PROMPT, min_tokens=0).probability(END) > 0
    made = llm.generate(PROMPT, min_tokens=3, max_tokens=8, seed=3, trace=True)
    kept = [step.candidates for token in made.tokens for step in token.trace if step.rule == "minimum_tokens"]
    size = llm.spec.vocab_size
    assert kept == [size - 2] * 3 + [size] * (len(kept) - 3)


def test_a_text_never_ends_with_suppress_eos(llm: LLM) -> None:
    among: dict[str, Any] = {
        "allowed_token_ids": [A, B, END, OTHER_END],
        "stop_token_ids": [B],
        "max_tokens": 20,
    }
    assert min(map(len, outputs(llm, **among))) < 20
    assert outputs(llm, suppress_eos=True, **among) == [[A] * 20] * len(SEEDS)
    past = outputs(llm, ignore_eos=True, allowed_token_ids=[A, END], max_tokens=20)
    assert all(END in ids for ids in past)  # ignore_eos does not suppress
    both = outputs(llm, ignore_eos=True, suppress_eos=True, allowed_token_ids=[A, END], max_tokens=20)
    assert both == [[A] * 20] * len(SEEDS)


def test_only_allowed_tokens_come(llm: LLM) -> None:
    allowed = [7, 9, A, 250, 9]
    assert {token for ids in outputs(llm, allowed_token_ids=allowed, max_tokens=20) for token in ids} == {
        *allowed
    }
    with pytest.raises(ParameterError, match="allowed_token_ids is empty"):
        llm.generate(PROMPT, allowed_token_ids=[])
    law = llm.next_token(PROMPT, allowed_token_ids=allowed)
    row = llm.logits(PROMPT)[-1].astype(np.float64)
    assert sorted(law.ids.tolist()) == sorted(set(allowed))
    assert law.probabilities == pytest.approx(softmax(row[law.ids]), abs=1e-6)


def test_a_bias_is_added_and_minus_infinity_bans(llm: LLM) -> None:
    row = llm.logits(PROMPT)[-1].astype(np.float64)
    favourite = int(row.argmax())
    law = llm.next_token(PROMPT, logit_bias={A: 3.0, B: -2.5, favourite: -np.inf})
    row[[A, B, favourite]] += [3.0, -2.5, -np.inf]
    assert law.probability(favourite) == 0
    assert law.probabilities == pytest.approx(softmax(row)[law.ids], abs=1e-6)
    assert outputs(llm, logit_bias={C: 1e6}, max_tokens=5) == [[C] * 5] * len(SEEDS)


@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids", "bad_words", "stop_token_ids"])
def test_a_token_that_the_model_does_not_have_is_refused_by_name(llm: LLM, name: str) -> None:
    beyond = llm.spec.vocab_size
    given: Any = {"logit_bias": {beyond: 1.0}, "bad_words": [[beyond]]}.get(name, [beyond])
    with pytest.raises(ParameterError, match=rf"{name} holds token id {beyond}"):
        llm.generate(PROMPT, **{name: given})


def test_biases_that_the_model_lacks_are_refused_even_beside_words(llm: LLM) -> None:
    with pytest.raises(ParameterError, match="dry_sequence_breakers holds token id 999"):
        llm.generate(PROMPT, dry_multiplier=1.0, dry_sequence_breakers=["\n", [999]])


# Repetition


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_ngram_comes_twice(llm: LLM, n: int) -> None:
    among: dict[str, Any] = {"allowed_token_ids": list(range(A, A + 12)), "max_tokens": 12}

    def repeats(ids: list[int]) -> bool:
        grams = list(zip(*(ids[at:] for at in range(n)), strict=False))
        return len(set(grams)) < len(grams)

    assert any(map(repeats, outputs(llm, **among)))
    assert not any(map(repeats, outputs(llm, no_repeat_ngram_size=n, **among)))


def test_ngrams_of_the_prompt_count_where_the_scope_says_so(llm: LLM) -> None:
    def law(scope: Any) -> float:
        return llm.next_token("abxxa", no_repeat_ngram_size=2, penalty_scope=scope).probability(B)

    assert law("all") == 0
    assert law(5) == 0
    assert law(4) > 0
    assert law("output") > 0


def test_ngrams_that_leave_nothing_end_the_request_with_an_error_that_says_so(llm: LLM) -> None:
    with pytest.raises(RowError, match=r"token 2: .*no token left .*no_repeat_ngram, allowed_tokens"):
        llm.generate(PROMPT, allowed_token_ids=[A, B], no_repeat_ngram_size=1, max_tokens=5)


@pytest.mark.parametrize("scope", ["output", "all", 3])
def test_penalties_are_what_their_formulas_say(llm: LLM, scope: Any) -> None:
    made = llm.generate(
        PROMPT,
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        presence_penalty=0.5,
        penalty_scope=scope,
        allowed_token_ids=[A, B, C, 35],
        max_tokens=16,
        seed=1,
    )
    prompt = llm.tokenizer.encode(PROMPT)
    for at, (token, row) in enumerate(zip(made.tokens, rows_of(llm, made), strict=True)):
        before = made.token_ids[:at]
        seen = {"output": before, "all": prompt + before, 3: (prompt + before)[-3:]}[scope]
        z = row.copy()
        for said in set(seen):
            z[said] = z[said] / 1.3 if z[said] > 0 else z[said] * 1.3
            z[said] -= 0.4 * seen.count(said) + 0.5
        law = softmax(z[[A, B, C, 35]])
        assert np.exp(token.processed_logprob) == pytest.approx(law[[A, B, C, 35].index(token.id)], abs=1e-5)


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty", "repetition_penalty"])
def test_a_penalty_makes_a_token_rarer_whatever_its_logits_sign(llm: LLM, name: str) -> None:
    row = llm.logits(PROMPT)[-1]
    prompt = sorted(set(llm.tokenizer.encode(PROMPT)))
    assert (row[prompt] < 0).any()
    assert (row[prompt] > 0).any()
    own = llm.next_token(PROMPT)
    law = llm.next_token(PROMPT, penalty_scope="all", **{name: 1.5})  # type: ignore[arg-type]
    other = int(row.argmax())
    assert other not in prompt
    for token in prompt:
        odds = law.probability(token) / law.probability(other)
        assert odds < own.probability(token) / own.probability(other)


def test_each_penalty_may_have_a_scope_of_its_own(llm: LLM) -> None:
    both: dict[str, Any] = {"frequency_penalty": 1.0, "presence_penalty": 1.0}
    by_name = llm.next_token(PROMPT, penalty_scope={"frequency_penalty": "all"}, **both)
    alone = llm.next_token(PROMPT, penalty_scope="all", frequency_penalty=1.0)
    assert by_name.probabilities.tolist() == alone.probabilities.tolist()
    assert by_name.ids.tolist() == alone.ids.tolist()


def test_dry_penalizes_going_on_with_a_repeat_and_breakers_stop_it(llm: LLM) -> None:
    row = llm.logits("abcxabc")[-1].astype(np.float64)
    law = llm.next_token("abcxabc", dry_multiplier=0.8, dry_base=1.75, dry_allowed_length=2)
    x = llm.tokenizer.encode("x")[0]
    row[x] -= 0.8 * 1.75 ** (3 - 2)
    assert law.probabilities == pytest.approx(softmax(row)[law.ids], abs=1e-6)
    own = llm.next_token("abcxabc")
    for breakers in (["c"], [[C]], ["bc"]):
        broken = llm.next_token("abcxabc", dry_multiplier=0.8, dry_sequence_breakers=breakers)
        assert broken.probabilities.tolist() == own.probabilities.tolist()
    quoted = llm.next_token('ab"xab"', dry_multiplier=0.8)  # a breaker where none are given
    assert quoted.probabilities.tolist() == llm.next_token('ab"xab"').probabilities.tolist()


# Truncations and temperatures: each beside its definition


def by_rank(p: Float64Array) -> npt.NDArray[np.intp]:
    return np.argsort(-p, kind="stable")


def smallest(order: npt.NDArray[np.intp], p: Float64Array, mass: float) -> npt.NDArray[np.intp]:
    return order[: int(np.searchsorted(np.cumsum(p[order]), mass)) + 1]


def entropy(p: Float64Array) -> float:
    return float(-(p * np.log(p)).sum())


def typical(p: Float64Array) -> npt.NDArray[np.intp]:
    return smallest(np.argsort(np.abs(-np.log(p) - entropy(p)), kind="stable"), p, 0.6)


def tail_free(p: Float64Array) -> npt.NDArray[np.intp]:
    order = by_rank(p)
    bend = np.abs(np.diff(np.diff(p[order])))
    share = np.cumsum(bend / bend.sum())
    return order[: max(1, int((share <= 0.9).sum()))]


KEPT: dict[str, tuple[dict[str, Any], Callable[[Float64Array], npt.NDArray[np.intp]]]] = {
    "top_k": ({"top_k": 7}, lambda p: by_rank(p)[:7]),
    "top_p": ({"top_p": 0.6}, lambda p: smallest(by_rank(p), p, 0.6)),
    "min_p": ({"min_p": 0.15}, lambda p: np.flatnonzero(p >= 0.15 * p.max())),
    "typical_p": ({"typical_p": 0.6}, typical),
    "epsilon_cutoff": ({"epsilon_cutoff": 0.004}, lambda p: np.flatnonzero(p >= 0.004)),
    "eta_cutoff": (
        {"eta_cutoff": 0.02},
        lambda p: np.flatnonzero(p >= min(0.02, np.sqrt(0.02) * np.exp(-entropy(p)))),
    ),
    "top_a": ({"top_a": 0.5}, lambda p: np.flatnonzero(p >= 0.5 * p.max() ** 2)),
    "top_n_sigma": (
        {"top_n_sigma": 1.5},
        lambda p: np.flatnonzero(np.log(p) >= np.log(p.max()) - 1.5 * np.log(p).std()),
    ),
    "p_less": ({"p_less": True}, lambda p: np.flatnonzero(p >= (p * p).sum())),
    "xtc": (
        {"xtc_probability": 1.0, "xtc_threshold": 0.02},
        lambda p: np.setdiff1d(np.arange(len(p)), by_rank(p)[: int((p >= 0.02).sum()) - 1]),
    ),
    "mirostat": ({"mirostat": 2, "mirostat_tau": 3.0}, lambda p: np.flatnonzero(-np.log2(p) <= 6.0)),
}


@pytest.mark.parametrize("rule", KEPT)
@pytest.mark.parametrize("prompt", [PROMPT, "a", "in the"])
def test_a_truncation_keeps_what_its_definition_says(llm: LLM, rule: str, prompt: str) -> None:
    settings, keep = KEPT[rule]
    p = softmax(llm.logits(prompt)[-1].astype(np.float64))
    law = llm.next_token(prompt, **settings)
    expected = np.sort(keep(p))
    assert sorted(law.ids.tolist()) == expected.tolist()
    assert 0 < len(expected) < len(p)
    assert law.probabilities == pytest.approx(p[law.ids] / p[expected].sum(), abs=1e-6)
    made = llm.generate(prompt, max_tokens=1, seed=2, ignore_eos=True, **settings)
    assert made.tokens[0].id in expected
    assert made.tokens[0].kept == len(expected)


def test_temperatures_divide(llm: LLM) -> None:
    row = llm.logits(PROMPT)[-1].astype(np.float64)
    law = llm.next_token(PROMPT, temperature=0.6)
    assert law.probabilities == pytest.approx(softmax(row / 0.6)[law.ids], abs=1e-6)
    share = entropy(softmax(row)) / np.log(len(row))
    dynamic = llm.next_token(PROMPT, temperature=0.8, dynatemp_range=0.3, dynatemp_exponent=2.0)
    expected = softmax(row / (0.5 + 0.6 * share**2))
    assert dynamic.probabilities == pytest.approx(expected[dynamic.ids], abs=1e-5)


def test_top_k_one_temperature_zero_and_greedy_are_the_same(llm: LLM) -> None:
    greedy = [int(llm.logits(PROMPT)[-1].argmax())]
    for _ in range(9):
        row = llm.logits(llm.tokenizer.encode(PROMPT) + greedy)[-1]
        greedy.append(int(row.argmax()))
    for settings in ({"temperature": 0}, {"top_k": 1}, {"top_p": 0.0}, {"temperature": 0, "top_p": 0.9}):
        made = outputs(llm, max_tokens=10, ignore_eos=True, **settings)
        assert made == [greedy] * len(SEEDS)


def test_the_order_is_the_callers(llm: LLM) -> None:
    """A min-p before the temperature sees the model's own law, and one after it what temperature left."""
    row = llm.logits(PROMPT)[-1].astype(np.float64)
    settings: dict[str, Any] = {"temperature": 0.5, "min_p": 0.3}
    for order, seen in ((None, row / 0.5), (["min_p", "temperature"], row), ("llama.cpp", row)):
        p = softmax(seen)
        law = llm.next_token(PROMPT, order=order, **settings)
        assert sorted(law.ids.tolist()) == np.flatnonzero(p >= 0.3 * p.max()).tolist()
    names = [step.rule for step in llm.next_token(PROMPT, order=["min_p", "temperature"], **settings).trace]
    assert names == ["min_p", "temperature"]


def test_a_preset_is_its_settings(llm: LLM) -> None:
    explicit = llm.generate(PROMPT, temperature=1.1, top_p=0.98, min_p=0.05, seed=4, max_tokens=12)
    assert llm.generate(PROMPT, preset="creative", seed=4, max_tokens=12).candidates == explicit.candidates
    sharper = llm.generate(PROMPT, preset="creative", temperature=0.2, seed=4, max_tokens=12)
    assert sharper.candidates != explicit.candidates
    assert (
        sharper.candidates
        == llm.generate(PROMPT, temperature=0.2, top_p=0.98, min_p=0.05, seed=4, max_tokens=12).candidates
    )


def test_settings_that_work_against_each_other_are_warned_of(llm: LLM) -> None:
    hot: dict[str, Any] = {"temperature": 1.5, "top_p": 0.99, "max_tokens": 1}
    calls: list[Callable[[], Any]] = [
        lambda: llm.generate(PROMPT, **hot),
        lambda: llm.generate([PROMPT], **hot),
        lambda: list(llm.stream(PROMPT, **hot)),
        lambda: llm.chat("hi", **hot),
        lambda: llm.next_token(PROMPT, **hot),
    ]
    for call in calls:
        with pytest.warns(UserWarning, match=r"temperature 1.5 with top_p 0.99 and no penalty") as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="repetition_penalty 2"):
        llm.next_token(PROMPT, repetition_penalty=2.0)


# A caller's own rules


def test_a_processor_sees_prompt_and_output_and_what_the_rules_before_it_left(llm: LLM) -> None:
    seen: list[tuple[list[int], Float32Array]] = []

    def look(ids: Sequence[int], logits: Float32Array) -> Float32Array:
        seen.append((list(ids), logits.copy()))
        return logits

    made = llm.generate(
        PROMPT,
        logits_processors=[look],
        logit_bias={A: 2.0},
        bad_words=[[B]],
        temperature=0.5,
        top_k=5,
        max_tokens=6,
        seed=1,
    )
    prompt = llm.tokenizer.encode(PROMPT)
    assert [ids for ids, _ in seen] == [prompt + made.token_ids[:at] for at in range(6)]
    for (_, logits), row in zip(seen, rows_of(llm, made), strict=True):
        row[A] += 2.0
        row[B] = -np.inf
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits, row, atol=1e-5)  # before temperature and top-k


def test_a_processor_stands_where_the_order_says(llm: LLM) -> None:
    seen: list[Float32Array] = []

    def look(ids: Sequence[int], logits: Float32Array) -> Float32Array:
        seen.append(logits.copy())
        return logits

    llm.next_token(
        PROMPT, logits_processors=[look], top_k=5, temperature=0.5, order=["top_k", "custom", "temperature"]
    )
    row = llm.logits(PROMPT)[-1]
    best = np.argsort(-row)[:5]
    assert np.flatnonzero(seen[0] > -np.inf).tolist() == sorted(best.tolist())
    assert seen[0][best].tolist() == row[best].tolist()


def test_processors_are_called_one_after_another_and_may_change_the_row_they_are_given(llm: LLM) -> None:
    def only(token: int) -> Callable[..., Any]:
        def keep(ids: Sequence[int], logits: Float32Array) -> Float32Array:
            kept = logits[token]
            logits[:] = -np.inf
            logits[token] = kept
            return logits

        return keep

    def next_id(ids: Sequence[int], logits: Float32Array) -> list[float]:
        return [float(logits[token - 1]) for token in range(len(logits))]  # a list will do

    made = outputs(llm, logits_processors=[only(A), next_id], max_tokens=4)
    assert made == [[B] * 4] * len(SEEDS)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7, "top_p": 0.9},
        {"repetition_penalty": 1.3, "penalty_scope": "all", "min_p": 0.02, "n": 3},
        {"mirostat": 2, "mirostat_tau": 3.0},
        {"mirostat": 1},
        {"adaptive_target": 0.3},
        {"xtc_probability": 0.5, "xtc_threshold": 0.02, "bad_words": [[A, B]], "no_repeat_ngram_size": 2},
        {"order": "llama.cpp", "temperature": 0.7},
    ],
    ids=str,
)
def test_a_processor_that_changes_nothing_gives_the_same_bits_as_none(
    llm: LLM, settings: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"seed": 5, "max_tokens": 20, "logprobs": 4, "trace": True, **settings}
    if settings.get("order") == "llama.cpp":  # which has no place for one
        with pytest.raises(ParameterError, match="logits_processors is set"):
            llm.generate(PROMPT, logits_processors=[lambda ids, logits: logits], **asked)
        return
    plain = llm.generate(PROMPT, **asked)
    own = llm.generate(PROMPT, logits_processors=[lambda ids, logits: logits], **asked)
    quiet = llm.generate(PROMPT, logits_processors=[lambda ids, logits: logits], **{**asked, "trace": False})
    for ours, theirs, third in zip(plain.candidates, own.candidates, quiet.candidates, strict=True):
        assert ours.text == theirs.text
        for token, other, untraced in zip(ours.tokens, theirs.tokens, third.tokens, strict=True):
            assert _figures(token) == _figures(other) == _figures(untraced)
            assert token.trace == tuple(step for step in other.trace if step.rule != "custom")


def _figures(token: Any) -> tuple[Any, ...]:
    return (
        *(token.id, token.logprob, token.processed_logprob, token.rank, token.entropy, token.kept),
        *(token.top_logprobs, token.top_processed_logprobs),
    )


class OwnError(Exception):
    """What a caller's own code raises."""


def throws(ids: Sequence[int], logits: Float32Array) -> Float32Array:
    if len(ids) > len(PROMPT):
        raise OwnError("mine")
    return logits


def no_numbers(ids: Sequence[int], logits: Float32Array) -> Float32Array:
    logits[7] = np.nan
    return logits


def infinite(ids: Sequence[int], logits: Float32Array) -> Float32Array:
    logits[7] = np.inf
    return logits


def nothing_left(ids: Sequence[int], logits: Float32Array) -> Float32Array:
    return np.full_like(logits, -np.inf)


def too_short(ids: Sequence[int], logits: Float32Array) -> Float32Array:
    return logits[:-1]


def forgets(ids: Sequence[int], logits: Float32Array) -> None:
    return None


NO_NUMBERS = r"token 0: the row of logits holds NaN or \+infinity, or a rule took it beyond float32"
FAULTY = [
    (no_numbers, RowError, rf"{NO_NUMBERS} \(rules: .*custom"),
    (infinite, RowError, rf"{NO_NUMBERS} \(rules: .*custom"),
    (nothing_left, RowError, r"token 0: the row of logits has no token left \(rules: .*custom"),
    (too_short, ParameterError, r"logits processor too_short must return 266 logits, not \[265\]"),
    (forgets, ParameterError, r"logits processor forgets must return 266 logits, not NoneType"),
]


@pytest.mark.parametrize(("faulty", "error", "said"), FAULTY, ids=[case[0].__name__ for case in FAULTY])
def test_a_faulty_processor_ends_its_own_request_and_is_named(
    llm: LLM, faulty: Callable[..., Any], error: type[UnspoolError], said: str
) -> None:
    alone = llm.generate(PROMPT, seed=1, max_tokens=8)
    plain = SamplingParams(seed=1, max_tokens=8)
    params = [plain, SamplingParams(logits_processors=[faulty]), plain]
    first, failed, last = llm.generate([PROMPT] * 3, params, return_exceptions=True)
    assert isinstance(failed, error)
    with pytest.raises(error, match=said):
        raise failed
    assert isinstance(first, Generation)
    assert isinstance(last, Generation)
    assert first.candidates == last.candidates == alone.candidates
    for call in (llm.next_token, llm.generate):
        with pytest.raises(error):
            call(PROMPT, logits_processors=[faulty])


def test_a_processor_that_throws_ends_its_own_request_with_its_own_error(llm: LLM) -> None:
    alone = list(llm.stream(PROMPT, seed=1, max_tokens=12))[-1].generation
    beside = llm.stream(PROMPT, seed=1, max_tokens=12)
    chunks = [next(beside)]
    doomed = llm.stream(PROMPT, logits_processors=[throws], max_tokens=12, ignore_eos=True)
    with pytest.raises(OwnError, match="mine") as caught:
        list(doomed)
    assert caught.value.__notes__ == ["in logits processor throws"]
    chunks += beside
    made = chunks[-1].generation
    assert made is not None
    assert alone is not None
    assert made.candidates == alone.candidates
    pool = llm.engine.main.pool
    assert pool.num_free == pool.num_blocks


def test_whatever_ends_or_refuses_one_of_a_list_stands_in_its_place(llm: LLM) -> None:
    alone = llm.generate(PROMPT, seed=1, max_tokens=8)
    plain = SamplingParams(seed=1, max_tokens=8)
    params = [plain, SamplingParams(logits_processors=[throws]), plain, plain]
    made = llm.generate([PROMPT, PROMPT, [10**6], PROMPT], params, return_exceptions=True)
    assert isinstance(made[1], OwnError)
    assert isinstance(made[2], ParameterError)
    assert str(made[2]).startswith("prompt 2 of the list: ")
    for place in (0, 3):
        whole = made[place]
        assert isinstance(whole, Generation)
        assert whole.candidates == alone.candidates
    with pytest.raises(ParameterError, match="prompt 1 of the list"):
        llm.generate([PROMPT, [10**6]], plain)


def test_rules_that_leave_nothing_end_only_their_own_request(llm: LLM) -> None:
    alone = llm.generate(PROMPT, seed=1, max_tokens=8)
    params = [
        SamplingParams(seed=1, max_tokens=8),
        SamplingParams(allowed_token_ids=[A], bad_words=[[A]]),
        SamplingParams(allowed_token_ids=[END], suppress_eos=True),
    ]
    made = llm.generate([PROMPT] * 3, params, return_exceptions=True)
    assert isinstance(made[0], Generation)
    assert made[0].candidates == alone.candidates
    for failed, rules in zip(
        made[1:],
        ("bad_words, allowed_tokens", "allowed_tokens, minimum_tokens"),
        strict=True,
    ):
        assert isinstance(failed, RowError)
        assert str(failed).endswith(f"the row of logits has no token left (rules: {rules})")


# The law


LAWS: dict[str, dict[str, Any]] = {
    "plain": {"top_k": 8},
    "penalized": {"top_k": 8, "temperature": 0.8, "repetition_penalty": 1.5, "penalty_scope": "all"},
    "nucleus": {"top_p": 0.3, "temperature": 1.1},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 3.0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 2.75},
    "adaptive-p": {"adaptive_target": 0.2, "top_k": 8},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.03, "top_k": 8},
    "own": {"logits_processors": [lambda ids, logits: logits * 0.5], "top_k": 8},
}
DRAWS = 600


@pytest.mark.parametrize("name", LAWS)
def test_next_token_is_the_law_that_the_first_token_is_drawn_from(llm: LLM, name: str) -> None:
    """Chi-square of draws under many seeds against the laws of those seeds, which differ for XTC alone."""
    settings: dict[str, Any] = {"ignore_eos": True, **LAWS[name]}
    params = [SamplingParams(seed=seed, max_tokens=1, **settings) for seed in range(DRAWS)]
    drawn = [made.tokens[0] for made in llm.generate([PROMPT] * DRAWS, params)]
    size = llm.spec.vocab_size
    laws: dict[bytes, Float64Array] = {}
    expected = np.zeros(size)
    for seed, token in enumerate(drawn):
        if seed < 40 or name == "xtc":
            law = llm.next_token(PROMPT, seed=seed, **settings)
            spread = np.zeros(size)
            spread[law.ids] = law.probabilities
            laws[spread.tobytes()] = spread
            assert token.kept == len(law)
        assert np.exp(token.processed_logprob) == pytest.approx(spread[token.id], rel=1e-5)
        expected += spread
    assert len(laws) == (2 if name == "xtc" else 1)
    counts = np.bincount([token.id for token in drawn], minlength=size)
    likely = expected > 0
    assert not counts[~likely].any()
    assert 5 <= likely.sum() <= 16
    statistic = float(((counts - expected)[likely] ** 2 / expected[likely]).sum())
    freedom = int(likely.sum()) - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.8, "top_p": 0.9},
        {"xtc_probability": 0.5, "xtc_threshold": 0.02},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "penalty_scope": "all"},
        {"dry_multiplier": 0.8, "allowed_token_ids": [A, B, C]},
        {"no_repeat_ngram_size": 3, "penalty_scope": "all", "allowed_token_ids": [A, B, C]},
        {"bad_words": [[A, B], [C]], "allowed_token_ids": [A, B, C]},
        {"typical_p": 0.7, "eta_cutoff": 1e-3, "order": ["eta_cutoff", "typical_p"]},
    ],
    ids=str,
)
def test_each_token_is_drawn_from_the_law_that_next_token_gives_there(
    llm: LLM, settings: dict[str, Any]
) -> None:
    made = llm.generate(PROMPT, seed=11, max_tokens=10, ignore_eos=True, **settings)
    prompt = llm.tokenizer.encode(PROMPT)
    for at, token in enumerate(made.tokens):
        law = llm.next_token(prompt + made.token_ids[:at], seed=11, ignore_eos=True, **settings)
        assert token.kept == len(law)
        assert np.exp(token.processed_logprob) == pytest.approx(law.probability(token.id), rel=1e-5)
        assert token.entropy == pytest.approx(law.entropy_before, rel=1e-6)


def test_a_law_is_ordered_and_sums_to_one(llm: LLM) -> None:
    law = llm.next_token(PROMPT, temperature=0.8)
    assert law.probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert all(one >= other for one, other in pairwise(law.probabilities.tolist()))
    assert law.entropy == pytest.approx(entropy(law.probabilities), abs=1e-5)
    assert law.entropy_before == pytest.approx(
        entropy(softmax(llm.logits(PROMPT)[-1].astype(np.float64))), abs=1e-5
    )
    assert len(law) == llm.spec.vocab_size
    assert law.probability(law.ids[0]) == law.probabilities[0]
    assert llm.next_token(PROMPT, temperature=0).entropy == 0


def test_next_token_takes_one_prompt_and_refuses_as_generate_does(llm: LLM) -> None:
    ids = llm.tokenizer.encode(PROMPT)
    law = llm.next_token(ids, top_k=3)
    assert law.ids.tolist() == llm.next_token(PROMPT, SamplingParams(top_k=3)).ids.tolist()
    assert llm.next_token(np.array(ids), SamplingParams(top_k=9), top_k=3).ids.tolist() == law.ids.tolist()
    with pytest.raises(ParameterError, match="prompt"):
        llm.next_token([PROMPT, PROMPT])  # type: ignore[list-item]
    with pytest.raises(ParameterError, match="top_k"):
        llm.next_token(PROMPT, top_k=-1)
    with pytest.raises(ParameterError, match="empty"):
        llm.next_token("")


# Seeds


def test_a_seed_holds_whatever_its_neighbours_ask_for(llm: LLM) -> None:
    settings: dict[str, Any] = {"seed": 9, "max_tokens": 12, "xtc_probability": 0.5, "xtc_threshold": 0.02}
    alone = llm.generate(PROMPT, **settings)
    others = [
        SamplingParams(max_tokens=20),
        SamplingParams(max_tokens=5, mirostat=2, seed=9),
        SamplingParams(max_tokens=9, logits_processors=[lambda ids, logits: logits], trace=True),
        SamplingParams(max_tokens=3, prompt_logprobs=3, logprobs=7),
    ]
    for place in range(len(others) + 1):
        params = [*others[:place], SamplingParams(**settings), *others[place:]]
        made = llm.generate([PROMPT] * len(params), params)
        assert made[place].candidates == alone.candidates


def test_samples_of_one_seed_differ_and_another_seed_differs(llm: LLM) -> None:
    made = llm.generate(PROMPT, seed=1, n=4, max_tokens=10)
    texts = {tuple(candidate.token_ids) for candidate in made.candidates}
    assert len(texts) == 4
    assert llm.generate(PROMPT, seed=2, max_tokens=10).token_ids != made.token_ids
    unseeded = llm.generate(PROMPT, max_tokens=10)
    assert llm.generate(PROMPT, seed=unseeded.seed, max_tokens=10).candidates == unseeded.candidates


@pytest.mark.parametrize(
    "settings",
    [{"mirostat": 2}, {"mirostat": 1}, {"adaptive_target": 0.3}, {"dry_multiplier": 1.0}, {"min_tokens": 4}],
    ids=str,
)
def test_samples_learn_apart(llm: LLM, settings: dict[str, Any]) -> None:
    """What one sample's rules remember is its own: each is what it would be alone in the step."""
    both = llm.generate(PROMPT, seed=3, n=3, max_tokens=15, ignore_eos=True, **settings)
    first = llm.generate(PROMPT, seed=3, n=1, max_tokens=15, ignore_eos=True, **settings)
    assert both.candidates[0].tokens == first.candidates[0].tokens
    assert len({tuple(candidate.token_ids) for candidate in both.candidates}) == 3


def test_breakers_may_stand_beside_a_rule_that_is_off(tiny_path: Path) -> None:
    with LLM(tiny_path, threads=1) as llm:
        llm.generate("the", max_tokens=1, dry_multiplier=0.0, dry_sequence_breakers=["\n"])


def test_an_engine_asks_for_token_ids_in_place_of_words(tiny_path: Path) -> None:
    with LLM(tiny_path, threads=1) as llm:
        for settings in (SamplingParams(dry_multiplier=0.8), SamplingParams(bad_words=["the"])):
            with pytest.raises(ParameterError, match="holds text, which an engine does not know"):
                llm.engine.prepare([1, 2], settings)
        llm.engine.prepare([1, 2], SamplingParams(dry_multiplier=0.8, dry_sequence_breakers=()))


def test_a_callers_own_rule_is_called_once_for_the_law_of_a_next_token(llm: LLM) -> None:
    calls: list[int] = []

    def one_more(ids: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        calls.append(len(ids))
        only = np.full_like(logits, -np.inf)
        only[100 + len(calls)] = 0
        return only

    law = llm.next_token(PROMPT, logits_processors=[one_more])
    assert len(calls) == 1
    assert law.ids.tolist() == [101] == [each.id for each in law.top_processed_logprobs]


def test_the_law_of_a_next_token_refuses_figures_of_the_prompt(llm: LLM) -> None:
    with pytest.raises(ParameterError, match="prompt_logprobs come with generate"):
        llm.next_token(PROMPT, prompt_logprobs=2)


def test_temperature_0_is_traced_by_its_own_name(llm: LLM) -> None:
    law = llm.next_token(PROMPT, temperature=0, top_k=5, order=("top_k", "temperature"))
    assert [(rule.rule, rule.candidates) for rule in law.trace] == [("top_k", 5), ("temperature", 1)]


def test_each_of_several_processors_has_tokens_of_its_own(llm: LLM) -> None:
    seen: list[int] = []

    def clears(ids: list[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        ids.clear()
        return logits

    def looks(ids: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        seen.append(len(ids))
        return logits

    llm.generate(PROMPT, logits_processors=[clears, looks], max_tokens=2, ignore_eos=True)
    assert seen == [seen[0], seen[0] + 1]
    assert seen[0] > 0


def test_a_processor_that_raises_stop_iteration_ends_no_stream_quietly(llm: LLM) -> None:
    def ends(ids: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        raise StopIteration

    with pytest.raises(RuntimeError, match="logits processor ends raised StopIteration"):
        list(llm.stream(PROMPT, logits_processors=[ends], max_tokens=2))


def test_a_long_sequence_breaker_is_refused_before_it_takes_long(llm: LLM) -> None:
    with pytest.raises(ParameterError, match="it has more than 40 characters"):
        llm.generate(PROMPT, dry_multiplier=1.0, dry_sequence_breakers=["x" * 41])


def test_so_many_sequence_breakers_are_refused_and_few_are_kept(llm: LLM) -> None:
    with pytest.raises(ParameterError, match="65 breakers; at most 64 may be strings"):
        llm.generate(PROMPT, dry_multiplier=1.0, dry_sequence_breakers=[chr(33 + i) for i in range(65)])
    for i in range(70):
        llm.generate(PROMPT, dry_multiplier=1.0, dry_sequence_breakers=[chr(33 + i)], max_tokens=1)
    assert len(llm._words._breakers) == 64


def test_a_rule_that_cancels_stands_in_its_place_too(llm: LLM) -> None:
    def cancels(ids: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        raise asyncio.CancelledError

    params = [SamplingParams(max_tokens=2), SamplingParams(logits_processors=[cancels])]
    made, ended = llm.generate([PROMPT] * 2, params, return_exceptions=True)
    assert isinstance(made, Generation)
    assert isinstance(ended, UnspoolError)
    assert "ended with CancelledError, from its own code" in str(ended)
