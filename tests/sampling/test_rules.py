"""What each rule keeps in the cases that other engines got wrong, and in the examples of the field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from tests.sampling.plans import after, kept
from tests.sampling.rows import log_of
from unspool.errors import ParameterError
from unspool.sampling.chain import padded
from unspool.sampling.noise import Purpose, token_bits
from unspool.sampling.plan import RuleKind
from unspool.sampling.rules import (
    AdaptiveP,
    AllowedTokens,
    BadWords,
    Custom,
    Dry,
    DynamicTemperature,
    Epsilon,
    FrequencyPenalty,
    Inputs,
    LogitBias,
    LogitsRow,
    MinimumTokens,
    MinP,
    Mirostat,
    NoiseSource,
    NoRepeatNgram,
    PLess,
    PresencePenalty,
    RepetitionPenalty,
    Rule,
    TailFree,
    Temperature,
    TopA,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Xtc,
    apply_entry,
)
from unspool.sampling.rules.xtc import coin
from unspool.sampling.settings import RuleSettings, compile_chain

Float32Array = npt.NDArray[np.float32]


def rules_of(**settings: object) -> tuple[Rule, ...]:
    return compile_chain(RuleSettings(**settings)).rules  # type: ignore[arg-type]


# The truncations


@pytest.mark.parametrize(
    ("weights", "p", "count"),
    [
        ([0.40, 0.25, 0.15, 0.12, 0.05], 0.9, 4),  # of 0.97: their probabilities are normalized
        ([0.35, 0.25, 0.15, 0.12, 0.08, 0.05], 0.8, 4),
        ([0.35, 0.25, 0.15, 0.12, 0.08, 0.05], 0.5, 2),
    ],
)
def test_top_p_keeps_the_crossing_token(weights: list[float], p: float, count: int) -> None:
    assert kept(log_of(weights), TopP(p)) == list(range(count))


def test_top_p_on_an_exact_tie_takes_no_token_more() -> None:
    assert len(kept(log_of([0.5, 0.5]), TopP(0.5))) == 1
    assert len(kept(log_of([0.5, 0.3, 0.2]), TopP(0.8))) == 2
    assert len(kept(log_of([0.4, 0.3, 0.2, 0.1]), TopP(0.7))) == 2
    assert len(kept(log_of([0.4, 0.3, 0.2, 0.1]), TopP(0.9))) == 3
    for n in range(1, 60):
        for k in range(1, n):
            assert len(kept(np.zeros(n, np.float32), TopP(k / n))) == k


def test_top_p_takes_tied_tokens_by_ascending_id() -> None:
    assert kept([0, 5, 5, 0, 5, 5], TopP(0.5)) == [1, 2, 4]  # two weigh a hair less than half of all


def test_top_p_of_zero_keeps_the_most_probable_and_of_one_everything() -> None:
    assert kept([1, 3, 3, 2], TopP(0)) == [1]
    assert len(kept([1, 3, 3, -80], TopP(1))) == 4


def test_top_k_takes_tied_tokens_by_ascending_id() -> None:
    assert kept([0, 5, 5, 0, 5, 5], TopK(3)) == [1, 2, 4]
    assert kept([0, 0.0, -0.0, 0], TopK(2)) == [0, 1]


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    assert len(kept([0, 1, 2], TopK(2**40))) == 3


def test_top_k_one_temperature_zero_and_greedy_agree_under_ties() -> None:
    logits = np.array([1, 4, 4, 4, 0], np.float32)
    for settings in ({"top_k": 1}, {"temperature": 0}, {"temperature": 0.7, "top_k": 1}):
        assert kept(logits, *rules_of(**settings)) == [np.argmax(logits)]


def test_min_p_is_relative_to_the_most_probable() -> None:
    """With a top of 0.4 it cuts at 0.04, with one of 0.05 at 0.005."""
    assert kept(log_of([0.4, 0.3, 0.2, 0.06, 0.041, 0.0395]), MinP(0.1)) == [0, 1, 2, 3, 4]
    flat = log_of([0.05] * 19 + [0.0251, 0.0151, 0.0051, 0.0047])
    assert kept(flat, MinP(0.1)) == list(range(22))


def test_min_p_keeps_a_token_on_the_exact_level() -> None:
    assert kept(log_of([0.4, 0.3, 0.2, 0.06, 0.04]), MinP(0.1)) == [0, 1, 2, 3, 4]
    assert kept(log_of([0.05] * 19 + [0.045, 0.005]), MinP(0.1)) == list(range(21))
    assert kept([2, 2, 1.999], MinP(1)) == [0, 1]


def fractions_of(seed: int) -> Iterator[tuple[list[int], int]]:
    """Weights in descending order, no two the same, and how many of them are to be kept."""
    rng = np.random.default_rng(seed)
    for size in rng.integers(3, 9, 150).tolist():
        weights = sorted(rng.choice(np.arange(1, 40), size, replace=False).tolist(), reverse=True)
        for count in range(1, size):
            yield weights, count


def test_a_probability_that_is_exactly_reached_is_reached_however_float32_rounds_it() -> None:
    for weights, count in fractions_of(1):
        total, within = sum(weights), sum(weights[:count])
        law = log_of([w / total for w in weights])
        assert kept(law, TopP(within / total)) == list(range(count))
        assert kept(law, TopP(within / total, strict=True)) == list(range(count + 1))
        assert kept(law, Epsilon(weights[count] / total)) == list(range(count + 1))
        assert kept(law, MinP(weights[count] / weights[0])) == list(range(count + 1))


def test_a_typical_mass_that_is_exactly_reached_is_reached_however_float32_rounds_it() -> None:
    for weights, count in fractions_of(2):
        p = [w / sum(weights) for w in weights]
        h = -sum(x * math.log(x) for x in p)
        order = sorted(range(len(p)), key=lambda i: abs(-math.log(p[i]) - h))
        mass = sum(weights[i] for i in order[:count]) / sum(weights)
        assert kept(log_of(p), Typical(mass)) == sorted(order[:count])


def test_the_far_tail_has_no_bends() -> None:
    head = [0.0, -0.5, -1.0, -4.0]
    tail = np.random.default_rng(1).uniform(-30, -11.2, 50)
    for share in (0.2, 0.5, 0.9, 0.999999):
        assert kept([*head, *tail], TailFree(share)) == kept([*head, *[-25.0] * 50], TailFree(share))


def test_thresholds_keep_a_token_of_exactly_that_probability() -> None:
    assert kept(log_of([0.5, 0.3, 0.2]), Epsilon(0.2)) == [0, 1, 2]
    assert kept(log_of([0.5, 0.3, 0.2]), Epsilon(0.3)) == [0, 1]
    assert kept(log_of([0.5, 0.375, 0.125]), TopA(0.5)) == [0, 1, 2]
    for n in range(2, 50):  # all as probable as two draws agree, 1 / n
        assert len(kept([1.5] * n, PLess())) == n
        assert len(kept([1.5] * n, Epsilon(1 / n))) == n
    assert kept([0.0, 0.0, 0.0, 0.0], Mirostat(2, tau=1.0)) == [0, 1, 2, 3]  # 2 bits each, mu = 2


def test_top_h_of_equal_tokens_keeps_those_of_exactly_that_entropy() -> None:
    for k in range(2, 30):
        assert len(kept([0.5] * k**2, TopH(0.5))) == k


def test_top_h_of_one_keeps_all_however_many() -> None:
    for seed in range(20):
        logits = (np.random.default_rng(seed).standard_normal(3000) * seed / 2).astype(np.float32)
        assert len(kept(logits, TopH(1.0))) == 3000
        assert len(kept(logits, TopH(1.0, summed=True))) == 3000


def test_top_n_sigma_keeps_the_same_at_any_temperature() -> None:
    logits = np.random.default_rng(3).standard_normal(500).astype(np.float32)
    for n in (0.5, 1.0, 2.0):
        alone = kept(logits, TopNSigma(n))
        for t in (0.25, 4.0):
            assert kept(logits, Temperature(t), TopNSigma(n)) == alone


def test_typical_may_drop_the_most_probable() -> None:
    assert 0 not in kept(log_of([0.4] + [0.06] * 10), Typical(0.2))


def test_xtc_drops_all_top_choices_but_the_least_and_nothing_where_there_is_one() -> None:
    law = log_of([0.4, 0.3, 0.2, 0.1])
    assert kept(law, Xtc(1.0, 0.15)) == [2, 3]
    assert kept(law, Xtc(1.0, 0.35)) == [0, 1, 2, 3]
    assert kept(law, Xtc(1.0, 0.2)) == [2, 3]
    assert kept([0, 0, -9.0], Xtc(1.0, 0.4)) == [1, 2]


def test_xtc_goes_by_a_coin_of_the_position_and_sample() -> None:
    law, rule = log_of([0.4, 0.3, 0.2, 0.1]), Xtc(0.25, 0.15)
    dropped = sum(kept(law, rule, key=key) == [2, 3] for key in range(4000))
    assert abs(dropped - 1000) < 4 * math.sqrt(4000 * 0.25 * 0.75)
    assert [kept(law, rule, key=key) for key in range(50)] == [kept(law, rule, key=key) for key in range(50)]
    assert all(kept(law, Xtc(0.0, 0.15), key=key) == [0, 1, 2, 3] for key in range(50))


def test_xtcs_coin_is_no_tokens_noise() -> None:
    source = NoiseSource(key=5, position=7, sample_index=2)
    (bits,) = token_bits(5, np.zeros(1, np.int32), 7, 2, Purpose.COIN)
    assert coin(source) == (float(bits) + 0.5) / 2**32
    (of_token,) = token_bits(5, np.zeros(1, np.int32), 7, 2, Purpose.TOKEN)
    assert bits != of_token


def test_mirostat_1_of_zipfs_own_law_is_its_limit() -> None:
    """Where the exponent is 1 the formula is 0 / 0: k = 2**mu / log N."""
    logits = -np.log(np.arange(1, 5001)).astype(np.float32)
    for bits in (4.0, 8.0, 11.0):
        assert len(kept(logits, Mirostat(1, tau=bits / 2))) == int(2**bits / math.log(5000))


def test_dynamic_temperature_is_cold_where_the_model_is_sure() -> None:
    flat = after([0.0, 0.01, 0.02], DynamicTemperature(0.1, 2.0))
    np.testing.assert_allclose(flat.logits, np.array([0.0, 0.01, 0.02]) / 2, rtol=1e-3)
    assert kept([9.0, -200, -200], DynamicTemperature(0.0, 2.0)) == [0]  # no entropy: temperature 0
    assert kept([5.0, -np.inf], DynamicTemperature(0.0, 2.0)) == [0]


# The order


def test_min_p_and_top_p_see_the_law_that_the_named_order_has_left_them() -> None:
    logits = log_of([0.6, 0.2, 0.1, 0.1])
    for truncation, after_temperature, before in (({"min_p": 0.4}, 4, 1), ({"top_p": 0.75}, 3, 2)):
        (name,) = truncation
        flattened = rules_of(temperature=3, **truncation)
        untouched = rules_of(temperature=3, **truncation, order=(name, "temperature"))
        assert len(kept(logits, *flattened)) == after_temperature
        assert len(kept(logits, *untouched)) == before


# Penalties and bans


def test_repetition_penalty_makes_a_token_rarer_whatever_its_sign() -> None:
    logits = [2.0, -2.0, 0.0, 1.0]
    law = after(logits, RepetitionPenalty(1.25), output=[0, 1, 2])
    np.testing.assert_allclose(law.logits, [1.6, -2.5, 0, 1])
    below_one = after(logits, RepetitionPenalty(0.5), output=[0, 1])
    np.testing.assert_allclose(below_one.logits, [4, -1, 0, 1])


def test_repetition_penalty_counts_a_token_once() -> None:
    law = after([1.0, 1.0, 1.0], RepetitionPenalty(2), output=[2, 2, 2])
    assert law.logits.tolist() == [1, 1, 0.5]


def test_frequency_and_presence_penalties_subtract_whatever_the_sign() -> None:
    logits = [2.0, -2.0, 0.0, 1.0]
    law = after(logits, FrequencyPenalty(0.5), output=[0, 1, 1, 2])
    np.testing.assert_allclose(law.logits, [1.5, -3.0, -0.5, 1.0])
    law = after(logits, PresencePenalty(0.5), output=[0, 1, 1, 2])
    np.testing.assert_allclose(law.logits, [1.5, -2.5, -0.5, 1.0])


@pytest.mark.parametrize("rule", [RepetitionPenalty, FrequencyPenalty, PresencePenalty, NoRepeatNgram, Dry])
def test_a_penalty_sees_the_prompt_or_the_output_or_the_last_n_as_it_is_told(rule: type) -> None:
    prompt, output = [0, 1], [2, 3]
    more = {NoRepeatNgram: (1,), Dry: (1.0, 2.0, 1)}.get(rule, (1.5,))
    names = ("value",) if rule is not Dry else ("multiplier", "base", "allowed_length")
    if rule is Dry:  # it needs a repeat to act: the last token, followed before by another
        prompt, output = [3, 0, 3, 1], [3, 2, 3]
    seen = {"output": {2, 3}, "all": {0, 1, 2, 3}, 1: {3}, 3: {1, 2, 3}, 100: {0, 1, 2, 3}}
    if rule is Dry:
        seen = {"output": {2}, "all": {0, 1, 2}, 3: {2}, 5: {1, 2}, 100: {0, 1, 2}}
    for scope, expected in seen.items():
        made = rule(**dict(zip(names, more, strict=True)), scope=scope)
        memory = made.memory(prompt)
        for token in output:
            memory.extend(token, None)
        assert set(memory.tokens.tolist()) == expected


def test_an_n_gram_is_not_completed_twice() -> None:
    assert kept([0.0] * 4, NoRepeatNgram(2)) == [0, 1, 2, 3]
    law = after([0.0] * 4, NoRepeatNgram(3), output=[0, 1, 2, 3, 0, 1])
    assert law.ids.tolist() == [0, 1, 3]
    assert after([0.0] * 4, NoRepeatNgram(1), output=[0, 3]).ids.tolist() == [1, 2]


def test_dry_penalizes_by_the_length_of_the_repeat_and_stops_at_a_breaker() -> None:
    output = [1, 2, 3, 4, 9, 1, 2, 3]
    flat = [0.0] * 10
    assert after(flat, Dry(0.5, 2.0, 2), output=output).logits[4] == -0.5 * 2
    assert after(flat, Dry(0.5, 2.0, 4), output=output).logits[4] == 0
    assert after(flat, Dry(0.5, 2.0, 1, ((2,),)), output=output).logits[4] == -0.5
    assert after(flat, Dry(0.5, 2.0, 2, ((2,),)), output=output).logits[4] == 0
    assert after(flat, Dry(0.5, 2.0, 1, ((1, 2),)), output=output).logits[4] == -0.5
    assert after(flat, Dry(0.5, 2.0, 1, ((4,),)), output=output).logits[4] == 0


def test_the_largest_penalty_of_dry_makes_a_token_unlikely_and_does_not_ban_it() -> None:
    law = after([0.0] * 3, Dry(10_000, 10_000, 1), output=[0, 1] * 50)
    assert law.ids.tolist() == [0, 1, 2]
    assert law.weights.tolist() == [0, 2**40, 2**40]


def test_bad_words_bans_only_the_token_that_would_complete_one() -> None:
    rule = BadWords(((0,), (1, 2), (3, 3, 3)))
    assert after([0.0] * 4, rule).ids.tolist() == [1, 2, 3]
    assert after([0.0] * 4, rule, prompt=[1]).ids.tolist() == [1, 3]
    assert after([0.0] * 4, rule, prompt=[3], output=[3]).ids.tolist() == [1, 2]


def test_a_bias_adds_and_minus_infinity_bans() -> None:
    law = after([0.0, 1.0, -2.0, -np.inf], LogitBias(((0, -np.inf), (2, 5.0), (3, 1e6))))
    assert law.ids.tolist() == [1, 2]
    assert law.logits.tolist() == [1.0, 3.0]


def test_allowed_tokens_bans_all_others_but_revives_none() -> None:
    assert after([0.0, -np.inf, 1.0, 2.0], AllowedTokens((2, 1, 0, 2))).ids.tolist() == [0, 2]


def test_a_text_does_not_end_before_its_minimum_or_at_all() -> None:
    assert after([0.0] * 3, MinimumTokens(2, (2,)), prompt=[0, 0], output=[0]).ids.tolist() == [0, 1]
    assert after([0.0] * 3, MinimumTokens(2, (2,)), output=[0, 0]).ids.tolist() == [0, 1, 2]
    assert after([0.0] * 3, MinimumTokens(None, (2,)), output=[0] * 9).ids.tolist() == [0, 1]


def test_temperature_divides() -> None:
    np.testing.assert_array_equal(after([1, -3], Temperature(2)).logits, np.array([0.5, -1.5], np.float32))


def test_banned_tokens_stay_banned() -> None:
    rules = (Temperature(0.5), RepetitionPenalty(2), LogitBias(((1, 9.0),)), TopK(3), TopP(0.999999))
    assert after([1, -np.inf, 2], *rules, output=[1]).ids.tolist() == [0, 2]


def test_a_token_that_falls_below_float32_is_out_of_what_later_rules_count() -> None:
    logits = np.array([2.0, 1.0, -3e38, 0.0], np.float32)
    assert kept(logits, Temperature(0.5)) == [0, 1, 3]
    for rule in (TopNSigma(0.5), TopNSigma(1.5), DynamicTemperature(0.2, 3.0), Mirostat(1, tau=0.5)):
        with_it = after(logits, Temperature(0.5), rule)
        banned = after(logits, LogitBias(((2, -np.inf),)), Temperature(0.5), rule)
        assert with_it.ids.tolist() == banned.ids.tolist()
        assert with_it.logits.tolist() == banned.logits.tolist()


# A caller's own rule


def custom(logits: Sequence[float], *processors: object, tokens: Sequence[int] = ()) -> LogitsRow:
    row = LogitsRow.of(np.array(logits, np.float32))
    Custom(processors).apply(row, Inputs(np.array(tokens, np.int32)))  # type: ignore[arg-type]
    return row


def test_a_callers_rule_gets_tokens_and_logits_and_gives_logits() -> None:
    seen = []

    def one(token_ids: Sequence[int], logits: Float32Array) -> Float32Array:
        seen.append((list(token_ids), logits.tolist()))
        logits[0] = -np.inf
        return logits

    row = custom([1, 2, -np.inf, 3], one, lambda ids, z: [x + len(ids) for x in z], tokens=[5, 5])
    assert seen == [([5, 5], [1, 2, -np.inf, 3])]
    assert (row.ids.tolist(), row.logits.tolist()) == ([1, 3], [4, 5])


@pytest.mark.parametrize("made", [None, 1.0, [1.0], "words", [[1.0, 2.0]], [1.0, 2.0, 3.0]])
def test_a_callers_rule_that_returns_no_row_is_named(made: object) -> None:
    def broken(token_ids: Sequence[int], logits: Float32Array) -> object:
        return made

    with pytest.raises(ParameterError, match="broken"):
        custom([1, 2], broken)


def test_a_callers_nan_is_not_taken_for_a_ban() -> None:
    assert np.isnan(custom([1, 2], lambda ids, z: z * np.nan).logits).all()
    assert np.isnan(custom([1, 2], lambda ids, z: [np.nan, 1]).logits).any()


def test_what_a_callers_rule_leaves_below_float32_is_banned_without_a_warning() -> None:
    row = custom([1, 2, 3], lambda ids, z: z.astype(np.float64) * [1, -1e300, 1])
    assert (row.ids.tolist(), row.logits.tolist()) == ([0, 2], [1, 3])
    assert custom([1, 2, 3], lambda ids, z: [1, 1e300, 0]).logits.tolist() == [1, np.inf, 0]


def test_the_reference_of_a_rule_is_that_of_its_entry() -> None:
    rng = np.random.default_rng(0)
    for rule in (Mirostat(1, 3.0), Mirostat(2, 3.0), AdaptiveP(0.3), AdaptiveP(0.0)):
        logits = (3 * rng.standard_normal(300)).astype(np.float32)
        logits[7] = -3.4e38
        mine, entrys = LogitsRow.of(logits), LogitsRow.of(logits)
        rule.apply(mine, Inputs())
        apply_entry(rule.kind, padded(rule.values), entrys, Inputs())
        assert mine.ids.tolist() == entrys.ids.tolist()
        assert mine.logits.tolist() == entrys.logits.tolist()
        assert len(mine.ids) < 300 or isinstance(rule, AdaptiveP)


def test_an_unknown_kind_of_entry_is_refused() -> None:
    row = LogitsRow.of(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="RuleKind"):
        apply_entry(max(RuleKind) + 1, (0.0, 0.0, 0.0), row, Inputs())


@pytest.mark.parametrize("kind", RuleKind)
def test_every_kind_of_entry_has_a_reference(kind: RuleKind) -> None:
    row = LogitsRow.of(np.array([0.5, 2.0, 1.0, -1.0], np.float32))
    values = {
        RuleKind.DYNAMIC_TEMPERATURE: (0.5, 0.9, 1.0),
        RuleKind.ADAPTIVE_P: (0.3, 0, 0),
        RuleKind.MIROSTAT_1: (1.0, 0, 0),
    }.get(kind, (1.0, 0, 0))
    if kind in (RuleKind.TEMPERATURE, RuleKind.REPETITION_PENALTY, RuleKind.TOP_K, RuleKind.TOP_N_SIGMA):
        values = (2.0, 0, 0)
    if kind in (RuleKind.TOP_P, RuleKind.TYPICAL, RuleKind.TAIL_FREE, RuleKind.TOP_H):
        values = (0.3, 0, 0)
    if kind == RuleKind.XTC:
        values = (1.0, 0.1, 0)
    before = (row.ids.tolist(), row.logits.tolist())
    inputs = Inputs(np.array([1], np.int32), np.array([-1.0], np.float32))
    apply_entry(kind, values, row, inputs)
    changed = before != (row.ids.tolist(), row.logits.tolist())
    assert changed == (kind != RuleKind.WITNESS)
    assert len(row.ids) >= 1
