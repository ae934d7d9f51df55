"""Plans of rows: what they hold, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.sampling.rows import sample_natively
from unspool.engine.plans import PlannedRow, plan_of
from unspool.sampling.chain import Chain
from unspool.sampling.rules import Custom, LogitsRow, NoiseSource, apply_entry
from unspool.sampling.rules.rule import Inputs
from unspool.sampling.settings import RuleSettings, compile_chain

PROMPT = [5, 6, 7, 5, 6, 8, 5, 6, *range(10, 90)]
ROW = np.zeros(100, np.float32)
REMEMBERING: dict[str, Any] = {
    "repetition_penalty": 1.5,
    "frequency_penalty": 0.5,
    "presence_penalty": 1.0,
    "dry_multiplier": 1.0,
    "dry_allowed_length": 1,
    "no_repeat_ngram_size": 2,
    "bad_words": ((5, 6), (7,)),
}


def own(**settings: Any) -> Chain:
    """A chain with a rule of the caller's own in its middle."""
    processors = (lambda ids, logits: logits,)
    return compile_chain(
        RuleSettings(logits_processors=processors, top_k=5, presence_penalty=1.0, **settings)
    )


def planned(chain: Chain, first: int = 0, end: int | None = None) -> PlannedRow:
    end = len(chain.rules) if end is None else end
    return PlannedRow(0, chain, first, end, chain.memory(PROMPT), NoiseSource())


def test_a_callers_own_rule_is_in_no_plan() -> None:
    chain = own(mirostat=2)
    names = ["presence_penalty", "custom", "top_k", "witness", "mirostat"]
    assert [rule.name for rule in chain.rules] == names
    assert [rule.name for rule in chain.named] == [name for name in names if name != "witness"]
    assert chain.learns
    assert not own().learns
    for first, end in ((0, None), (0, 2), (1, 2), (1, 4)):
        with pytest.raises(AssertionError, match="own rules are no entry of a plan"):
            plan_of([planned(chain, first, end)])
    for first, end in ((0, 1), (0, 0), (2, 5), (1, 1), (2, 2)):
        assert len(plan_of([planned(chain, first, end)]).kinds) == end - first


def test_no_backend_takes_a_callers_own_rule_for_another() -> None:
    with pytest.raises(ValueError, match="-1 is not a valid RuleKind"):
        apply_entry(Custom.kind, (0.0, 0.0, 0.0), LogitsRow.of(ROW), Inputs())
    plan = plan_of([planned(Chain())])
    plan.kinds, plan.values = own().kinds[1:2], own().values[1:2]
    plan.chain_starts, plan.token_starts = np.array([0, 1], np.int32), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="no rule of kind -1"):
        sample_natively(ROW[None], plan)


@pytest.mark.parametrize("scope", ["output", "all", 7])
def test_a_rows_memory_is_read_before_the_next_row_is_asked_for(scope: Any) -> None:
    chain = compile_chain(RuleSettings(**REMEMBERING, penalty_scope=scope))

    def growing() -> Iterator[PlannedRow]:
        memory = chain.memory(PROMPT[:1])
        assert memory is not None
        for position in range(1, len(PROMPT)):
            yield PlannedRow(0, chain, 0, len(chain.rules), memory, NoiseSource())
            memory.precede(PROMPT[position])

    together = plan_of(growing())
    alone = [
        plan_of([PlannedRow(0, chain, 0, len(chain.rules), chain.memory(PROMPT[:count]), NoiseSource())])
        for count in range(1, len(PROMPT))
    ]
    for name in ("kinds", "values"):
        assert (getattr(together, name) == np.concatenate([getattr(one, name) for one in alone])).all()
    starts = together.token_starts.reshape(-1)
    entries = len(chain.rules)
    for n, one in enumerate(alone):
        for entry in range(entries):
            mine = slice(*starts[n * entries + entry :][:2])
            its = slice(*one.token_starts[entry:][:2])
            said = dict(zip(together.tokens[mine].tolist(), together.amounts[mine].tolist(), strict=True))
            assert said == dict(zip(one.tokens[its].tolist(), one.amounts[its].tolist(), strict=True))
