"""The page of a study's result: ours beside the paper's with intervals and verdicts, what differs, and the runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.review.pages.comparison_page import report_of
from shoal.review.pages.pages import embedded, write_page
from shoal.review.pages.provenance import shown
from shoal.studies.claims import CheckedClaim, Verdict
from shoal.studies.definition import Study
from shoal.studies.intervals import Interval
from shoal.studies.pages import flat, sentence, values_cells
from shoal.studies.result import StudyResult
from shoal.studies.wording import measured, number, why

FILE = "report.html"
MARKS = {
    Verdict.REPRODUCED: "✓",
    Verdict.SMALLER: "✗",
    Verdict.OPPOSITE: "✗",
    Verdict.UNSEEN: "?",
    Verdict.GPU: "…",
    Verdict.MISSING: "…",
}
"""Beside the words of a verdict, for who skims the column."""
IMAGES_BYTES = 2_000_000
"""At most so many bytes of figures are embedded."""


@dataclass(frozen=True)
class ShownClaim:
    """A claim as the page shows it.

    Attributes:
        mark, verdict: how it came out.
        claim: the statement.
        measured: the difference with its interval, and on how many seeds it is true.
        open: what the verdict leaves open; may be empty.
        seeds: each seed with its difference.
        bar: where the interval lies, in per cent of the bar's width: its ends, its mean, and the claim's margin; None
            where there is no interval.
    """

    mark: str
    verdict: str
    claim: str
    measured: str
    open: str
    seeds: tuple[tuple[int, str], ...]
    bar: tuple[float, float, float, float] | None


def write_study_page(study: Study, result: StudyResult) -> Path:
    """Write the page of a result into its folder.

    Args:
        study: as it was run.
        result: what it came to.
    """
    folder = Path(result.folder)
    head, body = values_cells(study, result.scale, result.rows)
    counts = Counter(claim.verdict for claim in result.claims)
    images, left = images_of(study, folder)
    return write_page(
        folder / FILE,
        "study.html.j2",
        name=study.name,
        title=f"{study.title[:1].upper()}{study.title[1:]}",
        paper=sentence(study.paper),
        scale=result.scale,
        about=sentence(result.about),
        counts=[(verdict.value, counts[verdict]) for verdict in Verdict if counts[verdict]],
        claims=[shown_claim(claim) for claim in result.claims],
        head=head,
        body=body,
        has_paper=any(row.paper is not None for row in result.rows),
        images=images,
        images_left=left,
        differs=differs_from_paper(study, result),
        failed=result.failed,
        runs=[(name, report_of(RunFolder(places.runs() / name))) for name in result.runs],
        command=f"shoal study {study.name} --scale {result.scale}"
        + "".join(f" --set {key}={value}" for key, value in flat(result.overrides)),
        provenance=result.provenance,
    )


def shown_claim(claim: CheckedClaim) -> ShownClaim:
    """A claim in the words of the page."""
    scale = max((abs(value) for value in claim.differences), default=0.0)
    added = claim.bound or 0.0
    return ShownClaim(
        MARKS[claim.verdict],
        claim.verdict.value,
        claim.claim,
        measured(claim),
        why(claim),
        tuple(
            (seed, number(value + added, scale or None, signed=claim.bound is None))
            for seed, value in zip(claim.of_seeds, claim.differences, strict=True)
        ),
        None if claim.interval is None or claim.every_seed else bar_of(claim.interval, claim.margin),
    )


def bar_of(interval: Interval, margin: float) -> tuple[float, float, float, float] | None:
    """Places on a bar from 0 to 100 that has the interval and both 0 and the margin within it.

    >>> bar_of(Interval(mean=1.0, low=0.0, high=2.0, seeds=3, deviation=1.0, visible=None), 0.0)
    (5.0, 95.0, 50.0, 5.0)
    """
    if interval.low is None or interval.high is None:
        return None
    least, most = min(interval.low, 0.0, margin), max(interval.high, 0.0, margin)
    if most <= least:
        return None
    low, high, mean, at = (
        5 + 90 * (value - least) / (most - least) for value in (interval.low, interval.high, interval.mean, margin)
    )
    return low, high, mean, at


def images_of(study: Study, folder: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """Captions and PNGs in base64 of the study's figures, and the names of those that do not fit.

    First those of which the study says what is seen, then the others that lie in its folder.
    """
    captions = {folder / name: words for name, words in study.images.items()}
    others = [path for path in sorted(folder.glob("*.png")) if path not in captions]
    found, left, total = [], [], 0
    for path in (*captions, *others):
        if not path.is_file():
            continue
        total += path.stat().st_size
        if total > IMAGES_BYTES:
            left.append(path.name)
            continue
        found.append((captions.get(path, path.stem.replace("-", " ").replace("_", " ")), embedded(path)))
    return found, left


def differs_from_paper(study: Study, result: StudyResult) -> list[tuple[str, str, str]]:
    """The settings of all runs that are not those of the scale `paper`: key, value here, value there.

    Of single rows and columns nothing is said.
    """
    there = study.scales.get("paper")
    if there is None or result.scale == "paper":
        return []
    own = study.scales[result.scale]
    shared = dict(flat(study.settings))
    here = shared | dict(flat(own.settings)) | dict(flat(result.overrides))
    paper = shared | dict(flat(there.settings))
    keys = [key for key in dict.fromkeys((*paper, *here)) if here.get(key) != paper.get(key)]
    rows = [(key, value_in(here, key), value_in(paper, key)) for key in keys]
    return rows + [("seeds a cell", str(own.seeds), str(there.seeds))] * (own.seeds != there.seeds)


def value_in(settings: dict[str, object], key: str) -> str:
    """A setting as the page shows it."""
    return shown(settings[key]) if key in settings else "the default"
