"""Commands about models: fetch one, list those that have names, tell what a file holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unspool.cli.terminal import write

if TYPE_CHECKING:
    from unspool.model.loader import LoadedModel

ModelArgument = Annotated[
    str,
    typer.Argument(help="A short name, the path of a .gguf file, or a Hugging Face id (org/repo:file.gguf)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def pull(model: ModelArgument = "smollm2") -> None:
    """Fetch a model into the cache, and print where it is."""
    from unspool.model.registry import resolve

    print(str(resolve(model)))


def models(as_json: JsonOption = False) -> None:
    """List the models that have a short name, and which of them are here."""
    from unspool.model.registry import ALIASES, installed

    here = {model.name: str(model.path) for model in installed()}
    if as_json:
        rows = [
            {"name": a.name, "description": a.description, "bytes": a.size, "path": here.get(a.name)}
            for a in ALIASES.values()
        ]
        print(json.dumps(rows, indent=2))
        return
    for alias in ALIASES.values():
        print(f"{alias.name:<14}{_bytes(alias.size):>9}  {alias.description}")
        print(f"{'':<25}{here.get(alias.name, f'not here yet: unspool pull {alias.name}')}")


def info(model: ModelArgument = "smollm2", as_json: JsonOption = False) -> None:
    """Show what a model is made of: sizes, quantization, context, tokenizer, cache."""
    from unspool.model.loader import load

    facts = describe(load(model))
    if as_json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    for name, value in facts.items():
        for line, text in enumerate(_lines(name, value)):
            write(f"{'' if line else name.replace('_', ' '):<24}{text}\n")


def describe(model: LoadedModel) -> dict[str, Any]:
    """What there is to know of a model, as plain data in the order in which it is shown."""
    spec, tokenizer = model.spec, model.tokenizer
    kinds: dict[str, dict[str, Any]] = {}
    for tensor in model.tensors.values():
        new = {"computed_as": tensor.type.computed_as.name, "tensors": 0, "parameters": 0, "bytes": 0}
        kind = kinds.setdefault(tensor.type.name, new)
        kind["tensors"] += 1
        kind["parameters"] += tensor.rows * tensor.columns
        kind["bytes"] += tensor.data.nbytes
    special = {token: tokenizer.id_to_token(token) for token in sorted(tokenizer.special_ids)}
    return {
        "path": str(model.path),
        "name": spec.name,
        "architecture": spec.architecture,
        "license": _text(model.metadata.get("general.license")),
        "parameters": sum(kind["parameters"] for kind in kinds.values()),
        "tensor_bytes": sum(kind["bytes"] for kind in kinds.values()),
        "quantization": kinds,
        "context_length": spec.context_length,
        "layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "heads": spec.num_heads,
        "kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "rotated_dims": [rotary.dim for rotary in spec.rotaries],
        "norm_epsilon": spec.norm_epsilon,
        "tied_embeddings": spec.tied_embeddings,
        "cache_bytes_per_token": spec.cache_bytes_per_token(),
        "vocabulary": spec.vocab_size,
        "tokenizer": f"{model.metadata['tokenizer.ggml.model']}, {model.metadata['tokenizer.ggml.pre']}",
        "begins_with": special.get(tokenizer.bos_id) if tokenizer.bos_id is not None else None,
        "adds_beginning": tokenizer.add_bos,
        "ends_with": [tokenizer.id_to_token(token) for token in sorted(tokenizer.eos_ids)],
        "special_tokens": list(special.values()),
        "chat_template": model.chat_template is not None,
    }


def _text(value: object) -> str | None:
    """What a file says of itself, as text: it may be of any type."""
    return value if value is None or isinstance(value, str) else str(value)


def _lines(name: str, value: Any) -> list[str]:
    """A fact as people read it."""
    if name == "quantization":
        return [
            f"{kind}: {of['tensors']} tensors, {of['parameters']:,} parameters, {_bytes(of['bytes'])}"
            + (f", computed as {of['computed_as']}" if of["computed_as"] != kind else "")
            for kind, of in value.items()
        ]
    if isinstance(value, list):
        words = [str(item) for item in value[:60]]
        return [" ".join(words[start : start + 6]) for start in range(0, len(words), 6)] or ["none"]
    if isinstance(value, bool) or value is None:
        return [{True: "yes", False: "no", None: "none"}[value]]
    if name == "tensor_bytes":
        return [_bytes(value)]
    return [f"{value:,}" if isinstance(value, int) else f"{value:.7g}" if isinstance(value, float) else value]


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"
