"""What a penalty sees is what its scope says."""

from hypothesis import given
from hypothesis import strategies as st

from unspool.engine.history import PenaltyHistory

IDS = st.lists(st.integers(0, 5), max_size=20)


@given(IDS, IDS, st.one_of(st.sampled_from(["output", "all"]), st.integers(1, 8)))
def test_the_history_is_the_set_of_tokens_in_scope(
    prompt: list[int], output: list[int], scope: str | int
) -> None:
    history = PenaltyHistory(scope, prompt)  # type: ignore[arg-type]
    for at in range(len(output) + 1):
        both = prompt + output[:at]
        expected = output[:at] if scope == "output" else both if scope == "all" else both[-int(scope) :]
        assert sorted(history.array.tolist()) == sorted(set(expected))
        history.extend(output[at : at + 1])


def test_a_long_history_grows() -> None:
    history = PenaltyHistory("all", list(range(100)))
    history.extend(range(50, 1000))
    assert sorted(history.array.tolist()) == list(range(1000))
