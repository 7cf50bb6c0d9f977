"""What the commands of studies share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shoal_research.claims import JudgedClaim

Scale = Annotated[
    str,
    typer.Option(
        help="scale of the study: cpu fits two cores, large a GPU for a quarter of an hour, paper is that of the paper"
    ),
]
COLOURS = {"reproduced": "green", "refuted": "red"}
"""Colours of verdicts; verdicts that leave a claim open are yellow."""


def claim_line(one: JudgedClaim) -> str:
    """Return a claim on one line: verdict, statement, scale, and what was measured."""
    from shoal_research.claims import bound_of
    from shoal_research.words import interval_words

    seeds = len(one.differences)
    if seeds < one.planned:
        measured = f"{seeds} of {one.planned} planned seeds have run; true on {one.met}"
    else:
        measured = f"true on {one.met} of {seeds} seeds"
    if one.interval is not None and not one.claim.every_seed:
        measured = f"{interval_words(one.interval, bound_of(one.claim))}, {measured}"
    text = "; ".join(filter(None, (measured, one.note)))
    return f"[{COLOURS.get(one.verdict, 'yellow')}]{one.verdict}[/]  {one.claim.claim}, {one.scale} ({text})"


def claim_json(one: JudgedClaim) -> dict[str, Any]:
    """Return a claim as JSON."""
    return {
        "study": one.study.name,
        "scale": one.scale,
        "claim": one.claim.claim,
        "verdict": one.verdict,
        **{name: getattr(one.interval, name, None) for name in ("mean", "low", "high")},
        "differences": list(one.differences.values()),
        "seeds": list(one.differences),
        "planned": one.planned,
        "p": one.p,
        "false_discovery": one.false_discovery,
        "source": one.source,
        "note": one.note,
        "command": f"shoal study {one.study.name} --scale {one.scale}",
    }
