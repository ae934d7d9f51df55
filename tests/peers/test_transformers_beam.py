"""Beam search in the order of Transformers against that library's own, on tiny random models."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.strategy.texts import Driver, Tokens, Toy, plain_beam
from unspool.strategy.beam import Beam

torch: Any = pytest.importorskip("torch", reason="the oracle is in the extra `peers`")
transformers: Any = pytest.importorskip("transformers", reason="the oracle is in the extra `peers`")

VOCAB = 48


class Peer(Toy):
    """What a Transformers model says after a prompt."""

    model: Any
    prompt: list[int]

    def law(self, tokens: Tokens) -> dict[int, float]:
        if tokens not in self.known:
            with torch.no_grad():
                row = self.model(torch.tensor([[*self.prompt, *tokens]])).logits[0, -1]
            self.known[tokens] = dict(enumerate(torch.log_softmax(row.float(), -1).double().tolist()))
        return self.known[tokens]


def make_model(seed: int) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.6,
    )
    return transformers.LlamaForCausalLM(config).eval()


CASES = [(2, [2], 9), (3, [2, 5, 9], 12), (4, list(range(2, 8)), 10)]
"""Beams, end tokens, length."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Such small products are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def make_peer(seed: int, case: int) -> Peer:
    """A model, and a prompt of a length of its own."""
    _, ends, length = CASES[case]
    peer = Peer(VOCAB, length, frozenset(ends))
    peer.model = make_model(seed)
    random = torch.Generator().manual_seed(case)
    peer.prompt = torch.randint(8, VOCAB, (4 + seed + case,), generator=random).tolist()
    return peer


@pytest.mark.parametrize("stopping", [True, False, "never"])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
def test_the_transformers_order_gives_what_transformers_gives(penalty: float, stopping: Any) -> None:
    compared = 0
    for seed, case in itertools.product(range(2), range(len(CASES))):
        peer, width = make_peer(seed, case), CASES[case][0]
        gaps: list[float] = []
        plain_beam(peer, width, penalty, stopping, transformers=True, gaps=gaps)
        if min(gaps) < 1e-4:  # its sums are float32
            continue
        prompt = torch.tensor([peer.prompt])
        expected = peer.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            max_new_tokens=peer.max_tokens,
            length_penalty=penalty,
            early_stopping=stopping,
            eos_token_id=sorted(peer.ends),
            pad_token_id=1,
            return_dict_in_generate=True,
            output_scores=True,
        )
        found = Driver(peer, Beam(width, penalty, stopping).begin(peer.task(width, transformers=True))).run()
        sequences = expected.sequences[:, len(peer.prompt) :].tolist()
        for branch, sequence in zip(found, sequences, strict=True):
            assert sequence == branch.tokens + [1] * (len(sequence) - len(branch.tokens))
        assert [b.score for b in found] == pytest.approx(expected.sequences_scores.tolist(), rel=1e-4)
        compared += 1
    assert compared >= 2
