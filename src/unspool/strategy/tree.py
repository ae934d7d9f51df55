"""What a beam search has considered, kept and finished: a tree of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Fate = Literal["kept", "finished", "dropped"]

ROOT = -1
"""The parent of a text's first token."""


class Node(NamedTuple):
    """A token that was considered after others."""

    parent: int
    """The node of the token before it, or ``ROOT``."""
    token: int
    total: float
    """The sum of log-probabilities of the text up to it."""
    score: float
    """What the text would score if it ended here."""
    step: int
    """The step that considered it, from 0: how many tokens come before it."""
    fate: Fate
    """Whether a beam went on with it, a text finished with it, or neither."""


class Tree:
    """The nodes of a search, in the order in which they were considered.

    results: the last nodes of the texts that are returned, best first; empty until the search is over.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.results: list[int] = []

    def __len__(self) -> int:
        return len(self.nodes)

    def consider(self, parent: int, token: int, total: float, score: float) -> int:
        """Add a token, which is dropped unless it is told otherwise. Returns its node."""
        step = 0 if parent == ROOT else self.nodes[parent].step + 1
        self.nodes.append(Node(parent, token, total, score, step, "dropped"))
        return len(self.nodes) - 1

    def settle(self, node: int, fate: Fate) -> None:
        """Say what became of a node."""
        self.nodes[node] = self.nodes[node]._replace(fate=fate)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON knows it."""
        return {"nodes": [node._asdict() for node in self.nodes], "results": list(self.results)}

    def path(self, node: int) -> list[int]:
        """The nodes from a text's first token to this one."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = self.nodes[node].parent
        return nodes[::-1]

    def draw(self, text_of: Callable[[int], str], *, dropped: bool = False) -> list[str]:
        """Lines of text: a line for each run of tokens that no fork parts, the best result marked.

        text_of: the text of a token id.
        dropped: whether to show what was considered and went no further, too.
        """
        children: dict[int, list[int]] = {}
        for at, node in enumerate(self.nodes):
            if dropped or node.fate != "dropped":
                children.setdefault(node.parent, []).append(at)
        best = set(self.path(self.results[0])) if self.results else set()
        lines = []
        waiting = [(child, "", last) for child, last in reversed(_marked(children.get(ROOT, [])))]
        while waiting:
            at, stem, last = waiting.pop()
            run = [at]
            while len(following := children.get(run[-1], [])) == 1:
                run.append(following[0])
            text = "".join(text_of(self.nodes[node].token) for node in run)
            corner, under = ("└─", "   ") if last else ("├─", "│  ")
            mark = "★" if run[-1] in best else " "
            lines.append(f"{mark} {stem}{corner} {text!r}{self._figures(run[-1])}")
            waiting += [(child, stem + under, end) for child, end in reversed(_marked(following))]
        return lines

    def _figures(self, at: int) -> str:
        """What became of a run of tokens, as its line says it."""
        node = self.nodes[at]
        if self.results and at == self.results[0]:
            return f"  {node.total:.3f}, score {node.score:.4f}: best"
        if at in self.results:
            return f"  {node.total:.3f}, score {node.score:.4f}: result {self.results.index(at) + 1}"
        if node.fate == "finished":
            return f"  {node.total:.3f}, score {node.score:.4f}: finished"
        return f"  {node.total:.3f}{': dropped' * (node.fate == 'dropped')}"


def _marked(nodes: list[int]) -> list[tuple[int, bool]]:
    """Each with whether it is the last."""
    return [(node, at == len(nodes) - 1) for at, node in enumerate(nodes)]
