"""The native backend's laws of its own rows are those of the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.steps import make_sequences, step_of
from tests.reference.tiny import make_tensors, random_weights, tiny_spec
from tests.sampling.plans import plan_of
from tests.sampling.rows import Planned, any_stack, assert_same_laws, entry
from unspool import _native
from unspool.backend.base import StepOutput
from unspool.backend.cpu import CpuBackend
from unspool.errors import BackendError
from unspool.model.tensor import TensorType
from unspool.sampling.plan import RowStatus, RuleKind
from unspool.sampling.sampler import laws

SPEC = tiny_spec(vocab_size=333)
ROWS = 5
EVERYTHING = range(SPEC.vocab_size)


def computed(instruction_set: str) -> tuple[CpuBackend, StepOutput]:
    tensors = make_tensors(random_weights(SPEC), TensorType.F32)
    backend = CpuBackend(SPEC, tensors, threads=2, instruction_set=instruction_set)
    backend.allocate(4)
    (branch,) = make_sequences([ROWS], SPEC.vocab_size)
    return backend, backend.forward(step_of([(branch, ROWS)]))


@pytest.mark.parametrize("instruction_set", _native.instruction_sets())
def test_laws_of_a_steps_rows_equal_the_reference(instruction_set: str) -> None:
    backend, output = computed(instruction_set)
    rng = np.random.default_rng(2)
    stacks = [(), *(any_stack(rng, SPEC.vocab_size) for _ in range(60))]
    plan = plan_of(Planned(stack=stack, key=n, position=n, row=n % ROWS) for n, stack in enumerate(stacks))
    logits = output.logits.numpy()
    found = backend.laws(output, plan)
    assert_same_laws(laws(logits, plan), found)
    np.testing.assert_array_equal(found[0][1], EVERYTHING)
    np.testing.assert_array_equal(found[0][2], logits[0])


@pytest.mark.parametrize("instruction_set", _native.instruction_sets())
def test_a_row_without_a_law_has_a_status_and_no_candidates(instruction_set: str) -> None:
    backend, output = computed(instruction_set)
    over = entry(RuleKind.ADD, tokens=[5], amounts=[3e38])
    stacks = ((entry(RuleKind.BAN, tokens=EVERYTHING),), (over, over), (entry(RuleKind.TOP_K, 3),))
    plan = plan_of(Planned(stack=stack, row=row) for row, stack in enumerate(stacks))
    found = backend.laws(output, plan)
    assert_same_laws(laws(output.logits.numpy(), plan), found)
    assert [status for status, _, _ in found] == [RowStatus.EMPTY, RowStatus.NOT_A_NUMBER, RowStatus.OK]
    assert [len(ids) for _, ids, _ in found] == [0, 0, 3]


def test_a_plan_of_a_row_that_was_not_computed_is_refused() -> None:
    backend, output = computed("auto")
    with pytest.raises(BackendError, match=f"rows.*{ROWS}"):
        backend.laws(output, plan_of([Planned(row=ROWS)]))
