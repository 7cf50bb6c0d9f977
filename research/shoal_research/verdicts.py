"""The verdict on every claim of every study, from the kept results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal_research.claims import CheckedClaim, check, published_difference
from shoal_research.cost import cost_words
from shoal_research.definition import Claim, Study
from shoal_research.judging import Verdict
from shoal_research.kept import DOCS, load_kept
from shoal_research.shared_cells import kept_table


@dataclass(frozen=True)
class Entry:
    """A claim at a scale, as pages show it.

    Attributes:
        study, claim, scale: of the entry.
        checked: the verdict on the kept result.
        stale: whether settings of its cells have changed since they were measured.
        later: whether its rule was written, or changed, after the measurement.
    """

    study: Study
    claim: Claim
    scale: str
    checked: CheckedClaim
    stale: bool
    later: bool

    @property
    def verdict(self) -> Verdict:
        """The verdict of the check; a claim that only the scale paper decides is not run until it is measured."""
        if self.checked.verdict is Verdict.MISSING and self.claim.decidable == "paper":
            return Verdict.NOT_RUN
        return self.checked.verdict

    @property
    def cost(self) -> str:
        """The cost of measuring it, in words; empty where it is measured."""
        if self.verdict is not Verdict.NOT_RUN:
            return ""
        return cost_words(self.study, self.scale, [self.claim])

    @property
    def command(self) -> str:
        """The command that measures it."""
        return f"shoal study {self.study.name} --scale {self.scale}"


def entries(study: Study, docs: Path = DOCS) -> list[Entry]:
    """Return every claim of a study at each scale that measured it; a claim without any, at the first that can.

    Scales at which it is out of its regime are left out where another one judges it; where none does, the largest
    stands. Cells that other results lend to a scale without a result of its own count where nothing else measured the
    claim.
    """
    by_scale = {scale: entries_at(study, scale, docs) for scale in study.scales}
    kept = {scale for scale in study.scales if load_kept(study.name, scale, docs) is not None}
    found = []
    for claim in study.claims:
        scales = [scale for scale in study.judged_at(claim) if scale == "paper" or claim.decidable == "any"]
        own = [entry for scale in scales for entry in by_scale[scale] if entry.claim is claim]
        measured = [entry for entry in own if entry.checked.interval is not None]
        found += standing([entry for entry in measured if entry.scale in kept]) or measured[:1] or own[:1]
    return found


def standing(found: Sequence[Entry]) -> list[Entry]:
    """Return the entries of a claim, from the smallest scale to the largest, without scales that say nothing more."""
    judged = [entry for entry in found if entry.verdict is not Verdict.REGIME]
    return judged or list(found[-1:])


def entries_at(study: Study, scale: str, docs: Path) -> list[Entry]:
    """Return the claims that a scale can judge, with the verdict on what is kept of it."""
    kept = load_kept(study.name, scale, docs)
    rows = kept_table(study, scale, docs)
    changed = kept.changed(study) if kept else set()
    found = []
    for claim in study.claims_at(scale):
        checked = check(study, scale, claim, rows)
        measured = checked.interval is not None
        stale = not changed.isdisjoint(cells_of(claim))
        later = measured and (kept is None or not kept.has_rule(study, claim))
        found.append(Entry(study, claim, scale, checked, stale, later))
    return found


def cells_of(claim: Claim) -> set[str]:
    """Return the cells that a claim compares, as `row/column`."""
    return {f"{quantity.row}/{quantity.column}" for quantity in claim.quantities()}


def published(entry: Entry) -> float | None:
    """Return the paper's left minus right, or its left where right is a bound; None where it prints no such numbers."""
    return published_difference(entry.study, entry.claim)
