"""The pages of results: hand-written text, and below a mark what is made from the kept cells.

`docs/results.md` is the overview, with a row of verdicts for each page. `docs/results/PAGE.md` has the tables, claims
and figures of the studies of a page.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shoal.engine.store.codec import write_atomic
from shoal_research.claims import JudgedClaim, Verdict, bound_of, judge, published_difference
from shoal_research.definition import Study, StudyError, studies_of
from shoal_research.kept import DOCS, image_file, load_kept
from shoal_research.table import Place, Table
from shoal_research.words import interval_words, markdown_table

PAGES = {
    "fedpnp": "FedPNP",
    "cfcl": "CF-CL",
    "uifca": "UIFCA",
    "cfl": "CFL",
    "ssd": "SSD",
    "beyond": "Beyond the papers",
    "unseen": "Data that no default was chosen on",
}
"""The pages in their order, with the names that the overview gives them."""
MARK = "<!-- What follows is made by `make results` from research/shoal_research/results. -->"
"""The line between the text of a page and what is made."""
READING = "[How to read the tables](../results.md#claims-and-verdicts)."
SOURCES = {"paper": "Claims of the papers", "ours": "Claims of ours"}
MAX_NAMED = 4
"""Cases of a rule on every seed that are named; of more their number is said."""


def judged_page(page: str) -> list[JudgedClaim]:
    """Return the claims of a page, judged on the kept cells."""
    return judge(studies_of(page), lambda study, scale: load_kept(study.name, scale).table())


def make_pages(docs: Path = DOCS) -> dict[Path, str]:
    """Return the content of every page, by file."""
    judged = {page: judged_page(page) for page in PAGES}
    pages = {docs / "results.md": overview(judged, docs)}
    for page, claims in judged.items():
        path = docs / "results" / f"{page}.md"
        parts = [text(path), READING, *(part for study in studies_of(page) for part in study_parts(study, claims))]
        pages[path] = "\n\n".join([*parts, *not_run_parts(claims)]) + "\n"
    return pages


def write_pages(docs: Path = DOCS) -> list[Path]:
    """Write every page; return those that changed."""
    changed = []
    for path, content in make_pages(docs).items():
        if path.read_text() != content:
            write_atomic(path, content.encode())
            changed.append(path)
    return changed


def text(path: Path) -> str:
    """Return the hand-written part of a page, with the mark.

    Raises:
        StudyError: the page lacks the mark.
    """
    written, mark, _ = path.read_text().partition(MARK)
    if not mark:
        raise StudyError(f"the page {path} lacks the line {MARK!r}, below which tables are written: add it")
    return written + mark


def overview(judged: Mapping[str, Sequence[JudgedClaim]], docs: Path) -> str:
    """Return the overview: its text, and how the claims of each page came out, of the papers and of ours."""
    parts = [text(docs / "results.md")]
    for source, title in SOURCES.items():
        body = []
        for page, claims in judged.items():
            counts = Counter(one.verdict for one in claims if one.source == source)
            if counts:
                link = f"[{PAGES[page]}](results/{page}.md)"
                body.append([link, *(str(counts[verdict] or "") for verdict in Verdict)])
        parts += [f"### {title}", markdown_table(["", *Verdict], body)]
    return "\n\n".join(parts) + "\n"


def study_parts(study: Study, claims: Sequence[JudgedClaim]) -> Iterator[str]:
    """Yield heading, table, claims and figures of a study at each scale that judges a claim, else at the largest."""
    kept = {scale: load_kept(study.name, scale) for scale in study.scales}
    largest = [scale for scale, cells in kept.items() if cells.cells][-1:]
    for scale, cells in kept.items():
        here = [
            one
            for one in claims
            if (one.study.name, one.scale) == (study.name, scale) and one.verdict is not Verdict.NOT_RUN
        ]
        if not cells.cells or not (here or scale in largest):
            continue
        yield f"## {study.title[:1].upper()}{study.title[1:]}"
        yield f"{study.scales[scale].about[:1].upper()}{study.scales[scale].about[1:]}."
        yield values_table(study, scale, cells.table())
        yield from claims_parts(here)
        for name, caption in study.images.items():
            if (path := image_file(study.name, scale, name)).is_file():
                yield f"![{caption}](../images/{path.name})"
        file = f"../../shoal_research/results/{study.name}-{scale}.json"
        measured = cells.measured[-1].date
        if study.code_at:
            measured += " at " + ", ".join(one.commit for one in cells.measured)
        yield f"`{study.command(scale)}`: {measured}; [every seed]({file})."


def values_table(study: Study, scale: str, table: Table) -> str:
    """Return ours beside the paper's: a line a row, and metrics across, or columns where there are more of them."""
    captions = {key: column.caption for key, column in study.columns_at(scale).items()}
    columns = [column for column in captions if any(place[1] == column for place in table)]
    default = study.metrics[:5] if len(columns) == 1 else study.metrics[:1]
    measured = {place[2] for place in table if place[0] in study.rows and place[1] in captions}
    shown = [metric for metric in study.shown or default if metric in measured]
    if len(columns) == 1 or len(shown) > len(columns):
        head = shown
        prefixes = [f"{captions[column]}: " for column in columns]
        if len(columns) == 1:
            prefixes = [""]
        lines = {
            f"{prefix}{row.caption}": [(key, column, metric) for metric in shown]
            for column, prefix in zip(columns, prefixes, strict=True)
            for key, row in study.rows.items()
        }
    else:
        head = [captions[column] for column in columns]
        lines = {
            f"{row.caption}, {metric}": [(key, column, metric) for column in columns]
            for key, row in study.rows.items()
            for metric in shown
        }
    body = [
        [label, *(number(study, place, table) for place in line), seeds_words(line, table)]
        for label, line in lines.items()
        if any(place in table for place in line)
    ]
    return markdown_table(["", *head, "seeds"], body)


def number(study: Study, place: Place, table: Table) -> str:
    """Return a number of ours with its deviation over seeds, and the paper's in brackets; empty where there is none."""
    if place not in table:
        return ""
    values = list(table[place].values())
    mean = statistics.fmean(values)
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    digits = digits_of(study, place[2], mean)
    words = f"{mean:,.{digits}f}"
    if round(deviation, digits):
        words += f" ± {deviation:,.{digits}f}"
    paper = study.published(*place)
    return words if paper is None else f"{words} ({paper:,.{digits}f})"


def digits_of(study: Study, metric: str, mean: float) -> int:
    """Return the digits after the point of a number of a metric."""
    if study.percent and metric in study.metrics:
        return 1
    return 3 if abs(mean) < 10 else 1 if abs(mean) < 1000 else 0


def seeds_words(places: Sequence[Place], table: Table) -> str:
    """Return how many seeds some numbers have."""
    counts = [len(table[place]) for place in places if place in table]
    return " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))


def claims_parts(claims: Sequence[JudgedClaim]) -> Iterator[str]:
    """Yield why claims are out of regime, a table of those with an interval, and a line for each rule on every seed."""
    for reason in dict.fromkeys(one.note for one in claims if one.note):
        yield f"Out of regime: {reason}."
    by_interval = [one for one in claims if not one.claim.every_seed]
    if by_interval:
        body = [[one.claim.claim, str(one.verdict), ours(one), str(len(one.differences))] for one in by_interval]
        yield markdown_table(["claim", "verdict", "ours (the paper's)", "seeds"], body)
    rules: dict[str, list[JudgedClaim]] = {}
    for one in claims:
        if one.claim.every_seed:
            rules.setdefault(one.claim.claim.partition(": ")[2] or one.claim.claim, []).append(one)
    if rules:
        yield "\n".join(f"- On every seed: {rule}: {rule_words(cases)}." for rule, cases in rules.items())


def rule_words(cases: Sequence[JudgedClaim]) -> str:
    """Return how the cases of a rule on every seed came out: those of one verdict together."""
    parts = []
    for verdict in dict.fromkeys(one.verdict for one in cases):
        alike = [one for one in cases if one.verdict is verdict]
        words = f"{len(alike)} of {len(cases)} cases"
        if len(alike) <= MAX_NAMED:
            words = "; ".join(f"{case_of(one)}on {one.met} of {len(one.differences)}" for one in alike)
        parts.append(f"{verdict} ({words})")
    return ", ".join(parts)


def case_of(one: JudgedClaim) -> str:
    """Return the case of a claim `case: rule`, with a space; empty where it has none."""
    case, colon, _ = one.claim.claim.partition(": ")
    return f"{case} " if colon else ""


def ours(one: JudgedClaim) -> str:
    """Return the difference with its interval, or the number with a bound, and the paper's in brackets."""
    bound = bound_of(one.claim)
    words = "" if one.interval is None else interval_words(one.interval, bound)
    paper = published_difference(one.study, one.claim)
    if paper is None:
        return words
    return f"{words} ({paper:{'+' if bound is None else '-'}.4g})"


def not_run_parts(claims: Sequence[JudgedClaim]) -> Iterator[str]:
    """Yield the commands that measure what was not run, with the claims that wait for them."""
    waiting: dict[str, list[str]] = {}
    for one in claims:
        if one.verdict is Verdict.NOT_RUN:
            waiting.setdefault(one.study.command(one.scale), []).append(one.claim.claim)
    if waiting:
        yield "## Not run"
        yield "\n".join(f"- `{command}`: {'; '.join(waits)}." for command, waits in waiting.items())
