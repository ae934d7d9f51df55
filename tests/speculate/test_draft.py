"""A draft is a tree: what is none is refused, and what it says of paths is what its parents say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspool.errors import ParameterError
from unspool.speculate import DraftTree


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Trees of up to 12 nodes over three tokens."""
    tokens: list[int] = []
    parents: list[int] = []
    for _ in range(draw(st.integers(0, 12))):
        token, parent = draw(st.integers(0, 2)), draw(st.integers(-1, len(tokens) - 1))
        if (token, parent) not in zip(tokens, parents, strict=True):
            tokens.append(token)
            parents.append(parent)
    return DraftTree(tokens, parents)


def path(tree: DraftTree, node: int) -> list[int]:
    """The tokens that lead to a node, itself included."""
    return [] if node < 0 else [*path(tree, tree.parents[node]), tree.tokens[node]]


@given(trees())
def test_depths_are_the_lengths_of_paths(tree: DraftTree) -> None:
    assert tree.depths() == [len(path(tree, node)) for node in range(len(tree))]


@given(trees(), st.lists(st.integers(0, 3), max_size=6))
def test_following_tokens_leads_to_the_node_whose_path_they_are(tree: DraftTree, tokens: list[int]) -> None:
    node: int | None = -1
    for token in tokens:
        node = None if node is None else tree.child(node, token)
    found = [n for n in range(-1, len(tree)) if path(tree, n) == tokens]
    assert found == ([] if node is None else [node])  # and no two nodes have one path


@given(trees(), st.integers(0, 14))
def test_the_first_nodes_of_a_tree_are_a_tree(tree: DraftTree, count: int) -> None:
    cut = tree.first(count)
    assert len(cut) == min(count, len(tree))
    assert [path(cut, n) for n in range(len(cut))] == [path(tree, n) for n in range(len(cut))]


@given(st.lists(st.integers(0, 5), max_size=8))
def test_a_chain_is_one_path(tokens: list[int]) -> None:
    chain = DraftTree.chain(tokens)
    assert path(chain, len(tokens) - 1) == tokens
    assert chain.depths() == list(range(1, len(tokens) + 1))


@pytest.mark.parametrize(
    ("tokens", "parents", "match"),
    [
        ([1], [], "1 tokens has 0 parents"),
        ([1], [0], "node 0 must be from -1 to -1: 0"),
        ([1], [-2], "node 0 must be from -1 to -1: -2"),
        ([1, 2], [-1, 1], "node 1 must be from -1 to 0: 1"),
        ([1, 2, 3], [-1, 2, 0], "node 1 must be from -1 to 0: 2"),
        ([1, 1], [-1, -1], "two siblings"),
        ([1, 2, 3, 2], [-1, 0, -1, 0], "two siblings"),
        ([1.5], [-1], "tokens of a draft must be whole numbers"),
        (["a"], [-1], "tokens of a draft must be whole numbers"),
        ([1], [-1.0], "parents of a draft must be whole numbers"),
        (7, [-1], "tokens of a draft must be whole numbers"),
    ],
)
def test_what_is_no_tree_is_refused(tokens: Any, parents: Any, match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        DraftTree(tokens, parents)


def test_a_draft_does_not_change_with_the_lists_that_it_was_made_of() -> None:
    tokens, parents = [1, 2], [-1, 0]
    tree = DraftTree(tokens, parents)
    tokens.append(2)
    parents[1] = -1
    assert tree == DraftTree([1, 2], [-1, 0])
