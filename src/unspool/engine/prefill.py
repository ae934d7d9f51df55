"""How many prompt tokens share a step, and whose they are."""

from __future__ import annotations

from collections.abc import Sequence

from unspool.engine.branch import Branch
from unspool.model.spec import ModelSpec

PREFILL_TOKENS = 256
"""The most prompt tokens of a step."""
ATTENTION_WEIGHT = 4.4
"""What a product costs in attention, in floating point, beside one of a matrix in int8: measured."""


def prefill_share(decoding: int) -> int:
    """Prompt tokens at a prompt's beginning that may share a step with D tokens of branches that go on.

    Measured, a step with 8 + 1.5 D more tokens takes some 2.5 times what it takes with D alone: few tokens
    cost little beside reading the weights, and many cost as much each as those of the branches. So a long
    prompt takes more steps, and no branch's next token comes much later.
    """
    return min(PREFILL_TOKENS, 8 + 3 * decoding // 2)


def context_weight(spec: ModelSpec) -> float:
    """How much more a prompt's token costs for each position before it, of what its matrices cost.

    A token takes hidden (2 q + 2 kv) + 3 hidden * intermediate products a layer in the matrices, where q and
    kv are the sizes of its queries and keys, and 2 q with each position before it.
    """
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    products = spec.hidden_size * (2 * queries + 2 * keys + 3 * spec.intermediate_size)
    return ATTENTION_WEIGHT * 2 * queries / products


def prefill_shares(beginning: Sequence[Branch], budget: float, weight: float = 0.0) -> dict[Branch, int]:
    """How many tokens of a step each branch gets whose prompt is being computed; the first one at least.

    Half of the budget goes to the first that came, so that it gets on whoever else comes; half to the
    shortest, so that a few words do not wait behind pages. What these leave goes to the others in order. Far
    into a long context the first's half may not pay for a token: it gets one all the same.

    budget: in tokens at a prompt's beginning; one at position p counts 1 + weight * p.
    """
    left = {branch: branch.pending() for branch in beginning}
    cost = {branch: 1 + weight * branch.tracks[0].table.length for branch in beginning}
    shares = dict.fromkeys(beginning, 0)
    if len(beginning) > 1:
        shortest = min(beginning[1:], key=left.__getitem__)
        shares[shortest] = min(left[shortest], int(budget / 2 / cost[shortest]))
        budget -= shares[shortest] * cost[shortest]
    for branch in beginning:
        least = 1 if branch is beginning[0] else 0
        more = min(left[branch] - shares[branch], max(least, int(budget / cost[branch])))
        shares[branch] += more
        budget -= more * cost[branch]
    return shares
