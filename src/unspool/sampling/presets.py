"""Orders of rules, with what else decides which law other engines draw from: scopes, boundaries, ties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from unspool.sampling.plan import Ties
from unspool.sampling.rules.scope import Scope

DEFAULT_ORDER = (
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "dry",
    "no_repeat_ngram",
    "bad_words",
    "logit_bias",
    "allowed_tokens",
    "minimum_tokens",
    "custom",
    "temperature",
    "top_n_sigma",
    "min_p",
    "top_k",
    "top_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_a",
    "tail_free",
    "top_h",
    "p_less",
    "xtc",
    "mirostat",
    "adaptive_p",
)
"""The order in which rules see a row, by name, unless the caller has another."""

DEFAULT_SCOPES: Mapping[str, Scope] = {
    "repetition_penalty": "output",
    "frequency_penalty": "output",
    "presence_penalty": "output",
    "no_repeat_ngram": "output",
    "dry": "all",
}


@dataclass(frozen=True)
class Preset:
    """An order of rules, with the scopes and boundaries that its engine has.

    A rule that the engine lacks is not in its order: a request that sets it is refused by name.
    """

    order: tuple[str, ...] = DEFAULT_ORDER
    scopes: Mapping[str, Scope] = field(default_factory=lambda: DEFAULT_SCOPES)
    """By the name of each rule that has a scope."""
    bad_words_scope: Scope = "all"
    """Whose tokens may begin a bad word: those of prompt and output, or the output's alone."""
    top_k_ties: Ties = Ties.LOWEST_ID
    top_p_ties: Ties = Ties.LOWEST_ID
    top_p_strict: bool = False
    typical_ties: Ties = Ties.LOWEST_ID
    top_h_cap: int = 0
    top_h_summed: bool = False
    mirostat_renormalized: bool = False
    dynamic_temperature: bool = True
    """Whether the engine has it: it goes by the name of the temperature."""
    greedy_order: tuple[str, ...] | None = None
    """The order at temperature 0, where it is another one."""

    def order_at(self, temperature: float | None) -> tuple[str, ...]:
        """The order of rules at a temperature."""
        return self.greedy_order if temperature == 0 and self.greedy_order else self.order

    def ordered(self, order: tuple[str, ...]) -> Preset:
        """The same in another order."""
        return replace(self, order=order)


DEFAULT = Preset()

TRANSFORMERS = Preset(
    order=(
        "logit_bias",
        "repetition_penalty",
        "no_repeat_ngram",
        "bad_words",
        "minimum_tokens",
        "allowed_tokens",
        "custom",
        "temperature",
        "top_h",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
    ),
    scopes={**DEFAULT_SCOPES, "repetition_penalty": "all", "no_repeat_ngram": "all"},
    top_k_ties=Ties.ALL,
    top_p_ties=Ties.HIGHEST_ID,
    typical_ties=Ties.ALL,
    top_h_cap=100,
    top_h_summed=True,
    dynamic_temperature=False,
)
"""Transformers 5.24.0, ``GenerationMixin._get_logits_processor`` and ``generation/logits_process.py``.

``logit_bias`` is its ``sequence_bias`` of single tokens, ``allowed_tokens`` a ``prefix_allowed_tokens_fn``
that always allows the same. Top-p drops the lightest tokens, in ascending order, while they make at most 1 -
p: the smallest set that reaches p; of tied ones the first in that order, the lowest ids, go. """

VLLM = Preset(
    order=(
        "allowed_tokens",
        "bad_words",
        "minimum_tokens",
        "logit_bias",
        "custom",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "temperature",
        "min_p",
        "top_k",
        "top_p",
    ),
    scopes={**DEFAULT_SCOPES, "repetition_penalty": "all"},
    bad_words_scope="output",
    top_k_ties=Ties.ALL,
    top_p_ties=Ties.HIGHEST_ID,
    dynamic_temperature=False,
)
"""vLLM 0.33.0: ``v1/sample/sampler.py``, ``v1/sample/ops/topk_topp_sampler.py`` (the PyTorch path),
``v1/sample/ops/bad_words.py``, and ``model_executor/layers/utils.py`` for penalties."""

SGLANG = Preset(
    order=(
        "frequency_penalty",
        "presence_penalty",
        "minimum_tokens",
        "repetition_penalty",
        "logit_bias",
        "custom",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
    ),
    top_p_strict=True,
    dynamic_temperature=False,
)
"""sglang 0.5.23, ``srt/sampling/sampling_batch_info.py`` (penalties as in its overlapped schedule, the
default) and ``top_k_top_p_min_p_sampling_from_probs_torch`` of ``srt/layers/sampler.py``.

It cuts the sorted row after k tokens and where the mass of all before passes p, of the whole row's
probabilities: both keep a first part of the same order, so that top-p and then top-k keep the same. """

LLAMA_CPP = Preset(
    order=(
        "logit_bias",
        "minimum_tokens",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "dry",
        "top_n_sigma",
        "top_k",
        "typical_p",
        "top_p",
        "min_p",
        "xtc",
        "temperature",
        "mirostat",
        "adaptive_p",
    ),
    scopes={
        **DEFAULT_SCOPES,
        "repetition_penalty": 64,
        "frequency_penalty": 64,
        "presence_penalty": 64,
        "dry": 64,
    },
    mirostat_renormalized=True,
)
"""llama.cpp as in llama-cpp-python 0.3.36, ``common/sampling.cpp`` and ``src/llama-sampler.cpp``.

``minimum_tokens`` is its ``ignore_eos``, a bias of -inf. Temperature comes last, so that truncations see the
model's own law.
"""

OPENVINO = Preset(
    order=("minimum_tokens", "repetition_penalty", "top_k", "temperature", "top_p", "min_p"),
    scopes={**DEFAULT_SCOPES, "repetition_penalty": "all"},
    top_p_strict=True,
    dynamic_temperature=False,
)
"""OpenVINO GenAI, ``src/cpp/src/sampling/logit_processor.hpp`` and ``logit_transformers.hpp`` (commit
0731d8e).

It runs min-p before top-p, but sums the probabilities that the temperature left, without renormalizing: both
keep a first part of the same order, so that top-p and then min-p keep the same. Its frequency and presence
penalties are not here: they add to a negative logit, which makes the token likelier. """

MLX = Preset(
    order=(
        "logit_bias",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "custom",
        "top_p",
        "min_p",
        "xtc",
        "top_k",
        "temperature",
    ),
    scopes={
        **DEFAULT_SCOPES,
        "repetition_penalty": 20,
        "presence_penalty": 20,
        "frequency_penalty": 20,
    },
    top_p_ties=Ties.ALL,
    dynamic_temperature=False,
    greedy_order=(
        "logit_bias",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "custom",
        "temperature",
        "top_p",
        "min_p",
        "xtc",
        "top_k",
    ),
)
"""mlx-lm 0.32.2, ``sample_utils.py``: ``make_logits_processors`` and ``make_sampler``.

Temperature comes last, but greedy text passes over the rules that cut. Its XTC keeps every token that ties
with the least probable top choice, ours one of them.
"""

PRESETS: dict[str, Preset] = {
    "transformers": TRANSFORMERS,
    "vllm": VLLM,
    "sglang": SGLANG,
    "llama.cpp": LLAMA_CPP,
    "openvino": OPENVINO,
    "mlx": MLX,
}
"""By the name of the engine whose law they give."""
