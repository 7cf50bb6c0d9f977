"""The verdict on every claim of every study, from the results that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.studies.claims import CheckedClaim, Verdict, check
from shoal.studies.definition import Claim, Gap, Quantity, Study, load_study, study_names
from shoal.studies.kept import DOCS, Kept, load_kept


@dataclass(frozen=True)
class Entry:
    """A claim at a scale, as pages show it.

    Attributes:
        study, claim, scale: which.
        checked: the verdict on what is kept.
        stale: whether settings of its cells have changed since they were measured.
        later: whether its rule was written, or changed, after it was measured.
        kept: whether anything is kept of the study at the scale.
    """

    study: Study
    claim: Claim
    scale: str
    checked: CheckedClaim
    stale: bool
    later: bool
    kept: bool

    @property
    def verdict(self) -> Verdict:
        """As the check has it; what only paper scale decides and is not measured there needs a GPU."""
        if self.checked.verdict is Verdict.MISSING and self.claim.decidable == "paper":
            return Verdict.GPU
        return self.checked.verdict

    @property
    def command(self) -> str:
        """What measures it."""
        return f"shoal study {self.study.name} --scale {self.scale}"


def entries(study: Study, docs: Path = DOCS) -> list[Entry]:
    """Every claim of a study at the scales where something of it is kept; without any, where it can be measured."""
    kept = {scale: load_kept(study.name, scale, docs) for scale in study.scales}
    tables = {scale: one.table(study) for scale, one in kept.items() if one}
    changed = {scale: one.changed(study) for scale, one in kept.items() if one}
    found = []
    for claim in study.claims:
        own = []
        scales = [s for s in study.judged_at(claim) if s == "paper" or claim.decidable == "any"]
        for scale in scales:
            one: Kept | None = kept[scale]
            checked = check(study, scale, claim, tables.get(scale, []))
            stale = not changed.get(scale, set()).isdisjoint(cells_of(claim))
            own.append(
                Entry(
                    study, claim, scale, checked, stale, one is not None and not one.said(study, claim), one is not None
                )
            )
        measured = [entry for entry in own if entry.checked.interval is not None]
        found += measured or own[:1]
    return found


def cells_of(claim: Claim) -> set[str]:
    """The cells that a claim compares, as `row/column`."""
    return {f"{quantity.row}/{quantity.column}" for quantity in claim.quantities()}


def all_entries(docs: Path = DOCS) -> Iterator[Entry]:
    """Those of all studies."""
    for name in study_names():
        yield from entries(load_study(name), docs)


def published(entry: Entry) -> float | None:
    """The paper's left less right, or its left where right is a bound; None where it prints no such numbers."""

    def side(given: Gap | Quantity | float) -> float | None:
        if isinstance(given, Gap):
            above, below = side(given.above), side(given.below)
            return None if above is None or below is None else above - below
        return entry.study.published(given.row, given.column, given.metric) if isinstance(given, Quantity) else 0.0

    left, right = side(entry.claim.left), side(entry.claim.right)
    return None if left is None or right is None else left - right
