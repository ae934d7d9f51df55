"""The tree of a search: every candidate with its fate, and how it is drawn."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategy.texts import Driver, Toy
from unspool.strategy.beam import Beam
from unspool.strategy.tree import ROOT, Tree


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=40)
def test_the_tree_holds_what_the_search_did(seed: int, width: int, length: int) -> None:
    toy = Toy(5, length, seed=seed)
    driver = Driver(toy, Beam(width, 0.7).begin(toy.task(width, traced=True)))
    found = driver.run()
    tree = driver.strategy.tree
    assert tree is not None
    for at, node in enumerate(tree.nodes):
        path = tree.path(at)
        tokens = tuple(tree.nodes[each].token for each in path)
        assert len(tokens) == node.step + 1
        before = 0.0 if node.parent == ROOT else tree.nodes[node.parent].total
        assert node.total == before + toy.law(tokens[:-1])[tokens[-1]]
        assert node.score == node.total / len(tokens) ** 0.7
        assert node.parent == ROOT or tree.nodes[node.parent].fate == "kept"
        assert (node.fate == "kept") <= (not toy.ended(tokens))
        assert (node.fate == "finished") <= toy.ended(tokens)
    for step in range(length):
        considered = [node for node in tree.nodes if node.step == step]
        assert len(considered) <= 2 * width
        assert sum(node.fate == "kept" for node in considered) <= width
    assert [[tree.nodes[at].token for at in tree.path(result)] for result in tree.results] == [
        branch.tokens for branch in found
    ]


def test_a_search_that_is_not_traced_keeps_no_tree() -> None:
    toy = Toy(5, 3)
    assert Beam(2).begin(toy.task()).tree is None


def test_the_drawing_has_a_line_for_each_run_of_tokens_and_marks_the_best() -> None:
    tree = Tree()
    a = tree.consider(ROOT, 0, -1.0, -1.0)
    b = tree.consider(a, 1, -1.5, -0.75)
    c = tree.consider(b, 2, -2.0, -0.5)
    d = tree.consider(a, 3, -2.5, -1.25)
    e = tree.consider(ROOT, 4, -3.0, -3.0)
    f = tree.consider(d, 1, -4.0, -1.25)
    for node in (a, b, d):
        tree.settle(node, "kept")
    for node in (c, e, f):
        tree.settle(node, "finished")
    tree.consider(b, 0, -9.0, -3.0)
    tree.results = [c, f]
    texts = ["In", " the", " end", " a", "!"]
    assert tree.draw(texts.__getitem__) == [
        "★ ├─ 'In'  -1.000",
        "★ │  ├─ ' the end'  -2.000, score -0.5000: best",
        "  │  └─ ' a the'  -4.000, score -1.2500: result 2",
        "  └─ '!'  -3.000, score -3.0000: finished",
    ]
    assert tree.draw(texts.__getitem__, dropped=True)[2:4] == [
        "★ │  │  ├─ ' end'  -2.000, score -0.5000: best",
        "  │  │  └─ 'In'  -9.000: dropped",
    ]
    assert Tree().draw(texts.__getitem__) == []


def test_a_long_search_can_be_drawn() -> None:
    """Deeper than Python may call itself: every token parts in two."""
    tree, node = Tree(), ROOT
    for _ in range(3000):
        kept = tree.consider(node, 1, -1.0, -1.0)
        tree.settle(kept, "kept")
        tree.settle(tree.consider(node, 2, -1.0, -1.0), "finished")
        node = kept
    assert len(tree.draw(str)) == 6000
