"""The page of a study's result: our numbers beside the paper's, claims with verdicts, differences, and the runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from shoal.review.pages.pages import in_base64, write_page
from shoal.review.pages.provenance import value_in_table
from shoal.sweeps.files import report_links
from shoal.sweeps.set_options import flat, set_options
from shoal_research.claims import CheckedClaim
from shoal_research.definition import STAGED, Study
from shoal_research.intervals import Interval
from shoal_research.judging import Verdict
from shoal_research.number_words import number, sign_of
from shoal_research.pages import sentence, values_cells
from shoal_research.result import StudyResult
from shoal_research.sequential import STAGES
from shoal_research.wording import measured, open_question, verdict_word

FILE = "report.html"
MARKS = {
    Verdict.REPRODUCED: "✓",
    Verdict.SMALLER: "✗",
    Verdict.OPPOSITE: "✗",
    Verdict.UNSEEN: "?",
    Verdict.UNDECIDED: "?",
    Verdict.REGIME: "–",
    Verdict.NOT_RUN: "…",
    Verdict.MISSING: "…",
}
"""Mark of a verdict, before its words."""
MAX_IMAGES_BYTES = 2_000_000
"""Of all embedded figures together."""


@dataclass(frozen=True)
class ShownClaim:
    """A claim as the page shows it.

    Attributes:
        mark, verdict: of the claim.
        claim: the statement.
        measured: the difference with its interval, and on how many seeds the statement is true.
        open: what the verdict leaves open; may be empty.
        seeds: each seed with its difference.
        bar: ends and mean of the interval, and the claim's margin, in per cent of the bar's width; None where there is
            no interval.
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
        study: with the needs and options of the scale.
        result: of the study.
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
        runs=report_links(result.runs),
        command=command_of(study, result),
        provenance=result.provenance,
    )


def command_of(study: Study, result: StudyResult) -> str:
    """Return the command that repeats a result: the whole study, or the part of it that ran."""
    part = part_options(study, result)
    return f"shoal study {study.name} --scale {result.scale}{part}{set_options(result.overrides)}"


def part_options(study: Study, result: StudyResult) -> str:
    """Return the options that repeat the cells of a result, with a space before each; empty where all cells ran."""
    scale = result.scale
    places = [(row.row_key, row.column_key) for row in result.rows]
    places += [(run.row, run.column) for run in result.failed]
    planned = [
        (row, column) for row in study.rows for column in study.columns_at(scale) if study.runs_at(scale, row, column)
    ]
    done = [place for place in planned if place in places]
    rows = dict.fromkeys(row for row, _ in done)
    columns = dict.fromkeys(column for _, column in done)
    options = ""
    if any(row not in rows for row, _ in planned):
        options += "".join(f" --row {row}" for row in rows)
    if any(column not in columns for _, column in planned):
        options += "".join(f" --column {column}" for column in columns)
    return options + seeds_option(study, result)


def seeds_option(study: Study, result: StudyResult) -> str:
    """Return the option that names the seeds of a result, where they are fewer than a row begins with; else nothing."""
    planned = {row: study.seeds_at(result.scale, row) for row in study.rows}
    first = {row: STAGES[0] if seeds == STAGED else seeds for row, seeds in planned.items()}
    short = [row.seeds for row in result.rows if row.row_key in first and row.seeds < first[row.row_key]]
    if not short:
        return ""
    return f" --seeds {max(short)}"


def shown_claim(claim: CheckedClaim) -> ShownClaim:
    """Return a claim in the words of the page."""
    scale = max((abs(value) for value in claim.differences), default=0.0)
    bound = claim.bound or 0.0
    return ShownClaim(
        MARKS[claim.verdict],
        verdict_word(claim),
        claim.claim,
        measured(claim),
        open_question(claim),
        tuple(
            (seed, number(value + bound, scale or None, sign_of(claim.bound)))
            for seed, value in zip(claim.of_seeds, claim.differences, strict=True)
        ),
        bar_of(claim.interval, claim.margin) if claim.interval and not claim.every_seed else None,
    )


def bar_of(interval: Interval, margin: float) -> tuple[float, float, float, float] | None:
    """Return ends and mean of the interval, and the margin, on a bar from 0 to 100 that also contains 0.

    >>> bar_of(Interval(mean=1.0, low=0.0, high=2.0, seeds=3, deviation=1.0, visible=None), 0.0)
    (5.0, 95.0, 50.0, 5.0)
    """
    if interval.low is None or interval.high is None:
        return None
    left = min(interval.low, 0.0, margin)
    width = max(interval.high, 0.0, margin) - left
    if width <= 0:
        return None

    def place(value: float) -> float:
        return 5 + 90 * (value - left) / width

    return place(interval.low), place(interval.high), place(interval.mean), place(margin)


def images_of(study: Study, folder: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """Return captions and PNGs in base64 of the study's figures, and the names of those that do not fit.

    Figures with a caption in the study come first, then the others in its folder.
    """
    captions = {folder / name: words for name, words in study.images.items()}
    others = [path for path in sorted(folder.glob("*.png")) if path not in captions]
    found = []
    left = []
    total = 0
    for path in (*captions, *others):
        if not path.is_file():
            continue
        total += path.stat().st_size
        if total > MAX_IMAGES_BYTES:
            left.append(path.name)
            continue
        found.append((captions.get(path, path.stem.replace("-", " ").replace("_", " ")), in_base64(path.read_bytes())))
    return found, left


def differs_from_paper(study: Study, result: StudyResult) -> list[tuple[str, str, str]]:
    """Return the shared settings that differ from the scale `paper`: key, value here, value there.

    Settings of single rows and columns are left out.
    """
    paper_scale = study.scales.get("paper")
    if paper_scale is None or result.scale == "paper":
        return []
    own = study.scales[result.scale]
    shared = dict(flat(study.settings))
    here = shared | dict(flat(own.settings)) | dict(flat(result.overrides))
    paper = shared | dict(flat(paper_scale.settings))
    keys = [key for key in dict.fromkeys((*paper, *here)) if here.get(key) != paper.get(key)]
    rows = [(key, value_in(here, key), value_in(paper, key)) for key in keys]
    if own.seeds != paper_scale.seeds:
        rows.append(("seeds a cell", str(own.seeds), str(paper_scale.seeds)))
    return rows


def value_in(settings: dict[str, object], key: str) -> str:
    """Return a setting as the page shows it."""
    if key in settings:
        return value_in_table(settings[key])
    return "the default"
