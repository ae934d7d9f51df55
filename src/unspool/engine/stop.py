"""Stop strings, found as text grows, with exactly what may yet become one held back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class StopMatch(NamedTuple):
    """A stop string that was found."""

    start: int
    """Characters of text before it."""
    end: int
    string: str


class StopAutomaton:
    """Aho-Corasick automaton of a request's stop strings (Aho and Corasick 1975), shared by its branches.

    State 0 is the root. ``depth[state]`` is the length of the longest suffix of the text read so far
    that begins a stop string; ``found[state]`` is the longest stop string that ends here, or ``""``.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self.edges: list[dict[str, int]] = [{}]
        self.fail = [0]
        self.depth = [0]
        self.found = [""]
        for string in strings:
            self._add(string)
        self._link()

    def step(self, state: int, character: str) -> int:
        """The state after one more character; amortized constant time."""
        while state and character not in self.edges[state]:
            state = self.fail[state]
        return self.edges[state].get(character, 0)

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            if character not in self.edges[state]:
                self.edges[state][character] = len(self.edges)
                self.edges.append({})
                self.fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.found.append("")
            state = self.edges[state][character]
        self.found[state] = string

    def _link(self) -> None:
        """Set each state's failure link: its longest proper suffix that is a state; breadth first."""
        queue = deque(self.edges[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self.edges[state].items():
                self.fail[child] = self.step(self.fail[state], character)
                self.found[child] = self.found[child] or self.found[self.fail[child]]
                queue.append(child)


class StopMatcher:
    """Feeds one branch's text through an automaton and says how much of it is safe to show.

    The stop string that is completed first wins; of several that the same character completes, the
    longest, which starts first. So the outcome does not depend on how the text was cut into pieces.
    """

    __slots__ = ("automaton", "length", "match", "state")

    def __init__(self, automaton: StopAutomaton) -> None:
        self.automaton = automaton
        self.state = 0
        self.length = 0
        """Characters read, up to and including a match."""
        self.match: StopMatch | None = None

    @property
    def safe(self) -> int:
        """How many characters can no longer become part of a stop string; on a match, those before it."""
        if self.match is not None:
            return self.match.start
        return self.length - self.automaton.depth[self.state]

    def fork(self) -> StopMatcher:
        """A matcher in the same state that goes its own way."""
        twin = StopMatcher(self.automaton)
        twin.state, twin.length, twin.match = self.state, self.length, self.match
        return twin

    def push(self, text: str) -> StopMatch | None:
        """Read more text; the match, once there is one, after which nothing is read."""
        automaton, state = self.automaton, self.state
        for at, character in enumerate(text, self.length + 1):
            if self.match is not None:
                break
            state = automaton.step(state, character)
            self.length = at
            if automaton.found[state]:
                string = automaton.found[state]
                self.match = StopMatch(at - len(string), at, string)
        self.state = state
        return self.match
