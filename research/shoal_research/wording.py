"""Claims in words, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.review.results.summary import counted
from shoal_research.claims import CheckedClaim
from shoal_research.judging import Verdict
from shoal_research.number_words import as_written, interval_words, number


def measured(claim: CheckedClaim) -> str:
    """Return what was measured, in words; empty where nothing was."""
    if claim.interval is None:
        return ""
    if claim.every_seed:
        return seeds_words(claim)
    return f"{interval_words(claim.interval, claim.bound)}, {seeds_words(claim)}"


def is_partly_run(claim: CheckedClaim) -> bool:
    """Return whether some of the planned seeds of a claim have run, and others have not."""
    return claim.verdict is Verdict.MISSING and 0 < len(claim.of_seeds) < claim.seeds


def verdict_word(claim: CheckedClaim) -> str:
    """Return the verdict on a claim as it is shown."""
    return "not decided yet" if is_partly_run(claim) else str(claim.verdict)


def seeds_words(claim: CheckedClaim) -> str:
    """Return on how many of the seeds a claim is true, and the number of planned seeds if it differs."""
    seeds = len(claim.of_seeds)
    if is_partly_run(claim):
        if seeds == 1:
            holds = "holds" if claim.met else "does not hold"
            return f"1 of {claim.seeds} planned seeds has run; the claim {holds} on it"
        return f"{seeds} of {claim.seeds} planned seeds have run; the claim holds on {claim.met or 'none'} of them"
    planned = ""
    if seeds != claim.seeds:
        planned = f", {claim.seeds} planned"
    return f"true on {claim.met} of {counted(seeds, 'seed')}{planned}"


def notes(claim: CheckedClaim, *others: str) -> str:
    """Return what was measured, what the verdict leaves open, and other notes, in one text."""
    return "; ".join(filter(None, (measured(claim), open_question(claim), *others)))


def open_question(claim: CheckedClaim) -> str:
    """Return what a verdict leaves open, in words."""
    found = claim.interval
    parts = []
    if claim.verdict is Verdict.UNSEEN and claim.looked_for is not None:
        parts.append(f"a difference of {as_written(claim.looked_for)} is excluded")
    by_interval = claim.verdict is Verdict.UNDECIDED and not claim.every_seed
    if by_interval and found is not None and found.visible is not None:
        parts.append(f"sees {number(found.visible)}")
        if claim.looked_for is not None:
            parts.append(f"looks for {as_written(claim.looked_for)}")
    said = is_partly_run(claim) and claim.note == f"{len(claim.of_seeds)} of {claim.seeds} seeds"
    return "; ".join(filter(None, (*parts, "" if said else claim.note)))


def table(head: Sequence[str], body: Sequence[Sequence[str]], sides: str) -> str:
    """A table in Markdown; `sides` has l or r for each column."""
    rule = "|".join("---:" if side == "r" else "---" for side in sides)
    lines = [" | ".join(head), *(" | ".join(value.replace("|", "\\|") for value in row) for row in body)]
    first, *others = (f"| {line} |" for line in lines)
    return "\n".join([first, f"|{rule}|", *others])
