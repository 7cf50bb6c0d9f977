"""How often each verdict comes: by who makes the claim and by how it is judged, with the rate of false discoveries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from shoal_research.intervals import MISS_RATE
from shoal_research.judging import Verdict
from shoal_research.verdicts import Entry
from shoal_research.wording import table

BY_INTERVAL = (Verdict.REPRODUCED, Verdict.SMALLER, Verdict.OPPOSITE, Verdict.UNSEEN, Verdict.UNDECIDED)
"""Verdicts that an interval decides."""
NOT_JUDGED = (Verdict.REGIME, Verdict.NOT_RUN, Verdict.MISSING)
SOURCES = {"paper": "Claims of the papers", "ours": "Claims of ours"}


def counts_tables(pages: Mapping[str, Sequence[Entry]]) -> str:
    """Return a table of verdicts for the claims of the papers and one for ours, each with its false discoveries.

    Args:
        pages: the claims of each page, by the page as its row names it.
    """
    parts = []
    for source, title in SOURCES.items():
        chosen = {
            page: [entry for entry in found if entry.study.source_of(entry.claim) == source]
            for page, found in pages.items()
        }
        chosen = {page: found for page, found in chosen.items() if found}
        if chosen:
            parts += [f"### {title}", counts_table(chosen), false_discoveries(every(chosen))]
    return "\n\n".join(parts)


def every(pages: Mapping[str, Sequence[Entry]]) -> list[Entry]:
    """Return the claims of all pages."""
    return [entry for found in pages.values() for entry in found]


def counts_table(pages: Mapping[str, Sequence[Entry]]) -> str:
    """Return a row for each page and one for all: claims judged by an interval, on every seed, and not judged.

    A cell without claims is empty.
    """
    shown = every(pages)
    intervals = [verdict for verdict in BY_INTERVAL if count(shown, verdict, every_seed=False)]
    seeds = [verdict for verdict in BY_INTERVAL if count(shown, verdict, every_seed=True)]
    others = [verdict for verdict in NOT_JUDGED if count(shown, verdict)]
    head = ["", *intervals, *(f"on every seed: {verdict}" for verdict in seeds), *others]
    body = []
    for page, found in [*pages.items(), ("all", shown)]:
        counts = [count(found, verdict, every_seed=False) for verdict in intervals]
        counts += [count(found, verdict, every_seed=True) for verdict in seeds]
        counts += [count(found, verdict) for verdict in others]
        body.append([page, *(str(number or "") for number in counts)])
    return table(head, body, "l" + "r" * (len(head) - 1))


def count(found: Sequence[Entry], verdict: Verdict, every_seed: bool | None = None) -> int:
    """Return how many claims have a verdict; with `every_seed`, of those that are judged in this way."""
    return sum(
        entry.verdict is verdict and (every_seed is None or entry.claim.every_seed == every_seed) for entry in found
    )


def false_discoveries(found: Sequence[Entry]) -> str:
    """Return how many of the reproduced claims may be false, in words: at most the rate of error of all judged ones."""
    judged = Counter(entry.verdict for entry in found if not entry.claim.every_seed and entry.verdict in BY_INTERVAL)
    total = sum(judged.values())
    discovered = judged[Verdict.REPRODUCED] + judged[Verdict.SMALLER]
    expected = MISS_RATE / 2 * total
    if not discovered:
        return f"{total} claims are judged by an interval, and none is reproduced."
    share = min(1.0, expected / discovered)
    return (
        f"{total} claims are judged by an interval, and {discovered} of them are reproduced or smaller than claimed. "
        f"Were no claim true, {expected:.1f} would be reproduced all the same: of the {discovered} at most about "
        f"{share:.0%} are false discoveries."
    )
