"""A branch's draft in the step under way, and how far the branch has followed it."""

from __future__ import annotations

from unspool.speculate.draft import DraftTree
from unspool.strategy import Figures


class Drafted:
    """The guesses that run with a branch's last token, what their rows gave, and the path taken through them.

    node: the guess that the branch's last token was, -1 for the token that the draft follows, ``None`` where
        the branch has left the tree.
    path: the guesses that the branch said, in order, and whose rows it has used.
    depths: how many guesses lead to each, itself included.
    """

    __slots__ = ("_used", "depths", "node", "path", "rows", "tree")

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree
        self.depths = tree.depths()
        self.node: int | None = -1
        self.path: list[int] = []
        self.rows: dict[int, tuple[int, Figures]] = {}
        self._used = -1

    def follow(self, token: int) -> None:
        """The branch went on with ``token``."""
        self.node = None if self.node is None else self.tree.child(self.node, token)

    @property
    def ahead(self) -> bool:
        """Whether the branch's last token was a guess whose row is there and not used yet."""
        return self.node is not None and self.node != self._used and self.node in self.rows

    def advance(self) -> tuple[int, Figures]:
        """Use the row of the guess that the branch's last token was."""
        assert self.node is not None
        self._used = self.node
        self.path.append(self.node)
        return self.rows[self.node]

    def fork(self) -> Drafted:
        """The same for a fork of the branch."""
        twin = Drafted(self.tree)
        twin.node, twin.path, twin.rows, twin._used = self.node, self.path.copy(), self.rows, self._used
        return twin
