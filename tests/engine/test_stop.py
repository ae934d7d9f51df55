"""Stop strings: what is found does not depend on how the text is cut, and exactly the right tail waits."""

from hypothesis import given
from hypothesis import strategies as st

from unspool.engine.stop import StopAutomaton, StopMatch, StopMatcher

TEXTS = st.text(alphabet="ab\n🙂", max_size=24)
STOPS = st.lists(st.text(alphabet="ab\n🙂", min_size=1, max_size=5), min_size=1, max_size=4)


def expected_match(text: str, stops: list[str]) -> StopMatch | None:
    """The definition: the first end, then the longest."""
    for end in range(len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return StopMatch(end - len(longest), end, longest)
    return None


def held_back(text: str, stops: list[str]) -> int:
    """The definition: the longest suffix of the text that begins a stop string."""
    return max(n for n in range(len(text) + 1) if n == 0 or any(s.startswith(text[-n:]) for s in stops))


@given(TEXTS, STOPS, st.data())
def test_any_cutting_gives_the_match_of_the_definition(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    matcher = StopMatcher(StopAutomaton(stops))
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        matcher.push(text[start:end])
    assert matcher.match == expected_match(text, stops)
    if matcher.match is not None:
        assert matcher.safe == matcher.match.start


@given(TEXTS, STOPS)
def test_exactly_the_longest_possible_beginning_waits(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(StopAutomaton(stops))
    shown = 0
    for at, character in enumerate(text, 1):
        if matcher.push(character):
            break
        assert matcher.safe == at - held_back(text[:at], stops)
    assert matcher.safe >= shown


def test_the_longest_of_those_completed_together_wins() -> None:
    matcher = StopMatcher(StopAutomaton(["c", "bc", "abcd"]))
    assert matcher.push("abcd") == StopMatch(1, 3, "bc")


def test_nothing_is_read_after_a_match() -> None:
    matcher = StopMatcher(StopAutomaton(["x"]))
    assert matcher.push("axbx") == matcher.push("x") == StopMatch(1, 2, "x")
    assert matcher.length == 2
