"""``unspool calc``: what a cache takes and what speculation yields, worked out without running anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unspool.cli.options import CacheKind
from unspool.errors import ParameterError, shown

if TYPE_CHECKING:
    from unspool.cache.size import CacheShape

calc = typer.Typer(
    name="calc",
    help="Work out cache sizes, waste and the yield of speculation; runs no model.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

SHAPE_NAMES = (  # spelled out, as the table itself comes with NumPy, which no --help waits for
    "llama-2-7b, llama-2-70b, llama-3-8b, llama-3-70b, llama-3.1-405b, llama-3.2-1b, llama-3.2-3b, "
    "mistral-7b, qwen2.5-0.5b, qwen2.5-7b, qwen2.5-72b, smollm2-135m, smollm2-1.7b"
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@calc.command()
def cache(
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Read the shape from a model: an alias, or a .gguf file."),
    ] = None,
    shape: Annotated[str | None, typer.Option(help=f"A known shape: {SHAPE_NAMES}.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers, without --model and --shape.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key-value heads of a layer.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Elements of a head's key, and of its value.")] = None,
    tokens: Annotated[
        list[int],
        typer.Option(
            metavar="<int>", help="Tokens in the context of each sequence; may be given several times."
        ),
    ],
    batch: Annotated[int, typer.Option(help="Sequences, each with a context of its own.")] = 1,
    cache_type: CacheKind = "float16",
    as_json: JsonOption = False,
) -> None:
    """Show the bytes of a key-value cache.

    2 * layers * kv_heads * head_dim * tokens * batch * bytes of an element; with int8, 2 bytes more for each
    key and each value of a head, which have scales. It is taken that every layer keeps a key and a value of
    every token (no sliding window, no latent or shared layers), both of head_dim, and that sequences share no
    prefix. The last block of a sequence, of which 15 slots may be empty, is not rounded up. 1 GB is 10^9
    bytes.
    """
    from unspool.cache.size import cache_bytes, check_cache_type

    kind = check_cache_type(cache_type)
    found = _shape(model, shape, layers, kv_heads, head_dim)
    sizes = [{"tokens": count, "bytes": cache_bytes(found, count, batch, kind)} for count in tokens]
    facts = {
        "layers": found.layers,
        "kv_heads": found.kv_heads,
        "head_dim": found.head_dim,
        "cache_type": kind,
        "batch": batch,
        "bytes_per_token": cache_bytes(found, 1, 1, kind),
        "sizes": sizes,
    }
    title = (
        f"{found.layers} layers, {found.kv_heads} key-value heads of {found.head_dim}, {kind}, batch {batch}"
    )
    rows = [(f"{row['tokens']:,}", f"{row['bytes']:,}", _amount(row["bytes"])) for row in sizes]
    _show(facts, as_json, title, ("tokens", "bytes", "size"), rows)


@calc.command()
def blocks(
    *,
    tokens: Annotated[int, typer.Option(help="Length of the sequence.")],
    buffer: Annotated[
        int | None, typer.Option(help="Compare with one contiguous buffer of this many tokens.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the blocks that a sequence takes, and the share of them that stays empty.

    With --buffer, beside a cache that sets one contiguous buffer aside for each sequence.
    """
    from unspool.cache import BLOCK_SIZE, blocks_for_tokens
    from unspool.cache.size import buffer_waste, paged_waste

    waste = paged_waste(tokens)
    count = blocks_for_tokens(tokens)
    facts: dict[str, Any] = {"tokens": tokens, "blocks": count, "slots": count * BLOCK_SIZE, "waste": waste}
    rows = [_allocation(f"{count:,} blocks of {BLOCK_SIZE}", count * BLOCK_SIZE, tokens, waste)]
    if buffer is not None:
        facts |= {"buffer": buffer, "buffer_waste": buffer_waste(tokens, buffer)}
        rows.append(_allocation("one buffer", buffer, tokens, facts["buffer_waste"]))
    _show(facts, as_json, f"{tokens:,} tokens", ("cache", "slots", "empty", "waste"), rows)


@calc.command()
def speculation(
    *,
    acceptance: Annotated[float, typer.Option(help="Chance that a drafted token is kept, from 0 to 1.")],
    draft: Annotated[int, typer.Option(help="Tokens drafted in each step.")],
    as_json: JsonOption = False,
) -> None:
    """Show how many tokens a speculative step yields on average.

    (1 - a^(k+1)) / (1 - a) for acceptance a and k drafted tokens (Leviathan et al. 2023). It is taken that
    each drafted token is kept with the same chance, given that those before it were.
    """
    from unspool.speculate.expected import expected_tokens

    expected = expected_tokens(acceptance, draft)
    facts = {"acceptance": acceptance, "draft": draft, "expected_tokens": expected}
    row = (f"{acceptance:g}", f"{draft:,}", f"{expected:.3f}")
    _show(facts, as_json, None, ("acceptance", "draft", "tokens a step"), [row])


def _shape(
    model: str | None, shape: str | None, layers: int | None, kv_heads: int | None, head_dim: int | None
) -> CacheShape:
    """The shape that the options name, in the one way that they name it."""
    from unspool.cache.size import SHAPES, CacheShape

    sizes = (layers, kv_heads, head_dim)
    ways = (model is not None) + (shape is not None) + any(size is not None for size in sizes)
    if ways > 1:
        raise ParameterError("give only one of --model, --shape, and --layers with --kv-heads and --head-dim")
    if model is not None:
        return _shape_of_file(model)
    if shape is not None:
        if shape not in SHAPES:
            raise ParameterError(f"shape must be one of {SHAPE_NAMES}, not {shown(shape)}")
        return SHAPES[shape]
    if layers is None or kv_heads is None or head_dim is None:
        raise ParameterError("give --model, --shape, or all of --layers, --kv-heads and --head-dim")
    return CacheShape(layers, kv_heads, head_dim)


def _shape_of_file(model: str) -> CacheShape:
    """The shape that a model file's header states; its tensors and tokenizer are left unread."""
    from unspool.cache.size import CacheShape
    from unspool.model.family import family_of
    from unspool.model.gguf import read_gguf
    from unspool.model.registry import resolve

    file = read_gguf(resolve(model))
    spec = family_of(file).read_spec(file)
    return CacheShape(spec.num_layers, spec.num_kv_heads, spec.head_dim)


def _allocation(cache: str, slots: int, tokens: int, waste: float) -> tuple[str, ...]:
    """A row of what a cache sets aside for a sequence."""
    return cache, f"{slots:,}", f"{slots - tokens:,}", f"{waste:.1%}"


def _amount(size: int) -> str:
    """Bytes as people read them, in decimal units."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size / 1000:,.1f} kB"


def _show(
    facts: dict[str, Any],
    as_json: bool,
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[tuple[str, ...]],
) -> None:
    """Print ``facts`` as JSON, or ``rows`` as a table."""
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in columns:
        table.add_column(column, justify="left" if column == "cache" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    if title is not None:
        console.print(title, soft_wrap=True)
    console.print(table)
