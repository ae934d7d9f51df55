"""The options that search and choose among candidates, read into a strategy, a selection and guidance."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from unspool.cli.terminal import as_text
from unspool.errors import ParameterError

Width = Annotated[int | None, typer.Option("--beam", metavar="WIDTH", help="Beam search with so many beams.")]
LengthPenalty = Annotated[
    float | None,
    typer.Option(help="With --beam: sums are divided by this power of the length; 1 if not given."),
]
BestOfN = Annotated[
    int | None, typer.Option("--best-of", metavar="N", help="Draw N, print the most probable.")
]
MbrN = Annotated[
    int | None, typer.Option("--mbr", metavar="N", help="Draw N, print the one most like the others.")
]
VoteN = Annotated[
    int | None,
    typer.Option("--vote", metavar="N", help="Draw up to N, print one with the most common answer."),
]
Extract = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="With --vote: the answer is the last match (its group, if any)."),
]
GuidanceScale = Annotated[
    float | None, typer.Option(help="Classifier-free guidance, away from the negative prompt; 1 is off.")
]
NegativePrompt = Annotated[str | None, typer.Option(help="With --guidance-scale: what to lead away from.")]
ShowTree = Annotated[
    bool, typer.Option("--show-tree", help="With --beam: draw the search's tree below the text.")
]


def methods(
    *,
    beam: int | None,
    length_penalty: float | None,
    best_of: int | None,
    mbr: int | None,
    vote: int | None,
    extract: str | None,
) -> dict[str, Any]:
    """``strategy`` and ``select``, where the options ask for them.

    Raises ``ParameterError`` for an option without the one that it goes with, and for two selections.
    """
    from unspool.select import MBR, BestOf, Selection, Vote
    from unspool.strategy import Beam

    given = {"--best-of": best_of, "--mbr": mbr, "--vote": vote}
    chosen = [name for name, n in given.items() if n is not None]
    if len(chosen) > 1:
        raise ParameterError(f"{' and '.join(chosen)} both choose one of many: give one of them")
    if length_penalty is not None and beam is None:
        raise ParameterError("--length-penalty goes with --beam")
    if (extract is None) != (vote is None):
        raise ParameterError("--vote and --extract go together: what is it that votes are for?")
    made: dict[str, Any] = {}
    if beam is not None:
        made["strategy"] = Beam(beam, 1.0 if length_penalty is None else length_penalty)
    select: Selection | None = None
    if best_of is not None:
        select = BestOf(best_of)
    elif mbr is not None:
        select = MBR(mbr)
    elif vote is not None and extract is not None:
        select = Vote(vote, as_text(extract, "--extract"))
    return made if select is None else made | {"select": select}
