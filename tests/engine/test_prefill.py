"""How a step's prompt tokens are shared out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspool.engine.prefill import prefill_shares


class Beginning:
    """A branch with so many tokens before it in the cache, and so many to compute."""

    def __init__(self, computed: int, pending: int) -> None:
        self.tracks = [self]
        self.table = self
        self.length = computed
        self._pending = pending

    def pending(self) -> int:
        return self._pending


branches = st.builds(Beginning, st.integers(0, 2000), st.integers(1, 2000))


@given(st.lists(branches, min_size=1, max_size=8), st.integers(1, 256), st.sampled_from([0.0, 1 / 700]))
def test_shares_stay_within_the_budget_and_leave_nothing_that_fits(
    beginning: list[Any], budget: int, weight: float
) -> None:
    shares = prefill_shares(beginning, budget, weight)
    cost = {branch: 1 + weight * branch.length for branch in beginning}
    spent = sum(shares[branch] * cost[branch] for branch in beginning)
    assert all(0 <= shares[branch] <= branch.pending() for branch in beginning)
    first = beginning[0]
    assert shares[first] >= 1  # whatever a token of its costs
    assert spent <= budget + 1e-9 or (shares[first] == 1 and spent - cost[first] <= budget / 2)
    assert sum(shares.values()) <= budget
    for branch in beginning:
        assert shares[branch] == branch.pending() or spent + cost[branch] > budget - 1e-9


@pytest.mark.parametrize("weight", [0.0, 1 / 700])
def test_the_first_and_the_shortest_both_get_on(weight: float) -> None:
    first, long, short = Beginning(900, 1000), Beginning(0, 800), Beginning(0, 6)
    shares: Any = prefill_shares([first, long, short], 40, weight)  # type: ignore[list-item]
    assert shares[short] == 6
    assert shares[first] >= 34 // (1 + 900 * weight) > 0


@pytest.mark.parametrize("computed", [0, 700, 6000, 10**6])
@pytest.mark.parametrize("budget", [1, 2, 9, 256])
def test_the_first_gets_on_however_far_it_is_and_whoever_else_comes(computed: int, budget: int) -> None:
    first, others = Beginning(computed, 500), [Beginning(0, 4 + i) for i in range(7)]
    shares: Any = prefill_shares([first, *others], budget, 1 / 700)  # type: ignore[list-item]
    assert shares[first] >= 1
    assert budget == 1 or shares[others[0]] == min(4, budget // 2)


def test_tokens_far_into_a_prompt_count_for_more() -> None:
    near, far = Beginning(0, 500), Beginning(1400, 500)
    assert prefill_shares([near], 42, 1 / 700)[near] == 42  # type: ignore[index,list-item]
    assert prefill_shares([far], 42, 1 / 700)[far] == 14  # type: ignore[index,list-item]
