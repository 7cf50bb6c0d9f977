"""The pages of docs/results: hand-written text, and below a mark what is made from the results that are kept.

`docs/results.md` is the overview, with a row of verdicts for each page. `docs/results/SYSTEM.md` has the tables, claims
and figures of the studies of a system. A test compares the pages with what this module makes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from shoal.engine.store.codec import write_atomic
from shoal.sweeps.set_options import set_options
from shoal_research.claims_tables import claims_tables, paper_value, plural, regime_words
from shoal_research.cost import cost_words
from shoal_research.definition import Column, Study, StudyError, function, load_study, study_names
from shoal_research.kept import DOCS, Kept, image_file, load_kept
from shoal_research.result import FailedRun
from shoal_research.rows import StudyRow
from shoal_research.shared_cells import kept_table, lenders
from shoal_research.verdict_counts import counts_tables
from shoal_research.verdicts import Entry, entries
from shoal_research.wording import table

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

READING = (
    "Means ± deviations over seeds, and the paper's values in brackets: "
    "[how to read the tables](../results.md#claims-and-verdicts)."
)
NUMBER_AT_END = re.compile(r"(?<= )[\d.]+$")
"""The number in which rules such as `within 3 points of the paper's 66.5` may differ."""


def page_of(study: Study) -> str:
    """The page that shows a study."""
    return study.page or study.system


def make_pages(docs: Path = DOCS) -> dict[Path, str]:
    """The content of every page, by file.

    Raises:
        StudyError: a study names a page that is not there, or a page or its mark is missing.
    """
    studies = [load_study(name) for name in study_names()]
    for study in studies:
        if page_of(study) not in PAGES:
            raise StudyError(
                f"study {study.name!r} names the page {page_of(study)!r}; expected one of {', '.join(PAGES)}"
            )
    by_page = {page: [study for study in studies if page_of(study) == page] for page in PAGES}
    found = {docs / "results.md": overview(by_page, docs)}
    for page, own in by_page.items():
        found[docs / "results" / f"{page}.md"] = system_page(page, own, docs)
    return found


def write_pages(docs: Path = DOCS) -> list[Path]:
    """Write every page; returns those that changed."""
    changed = []
    for path, content in make_pages(docs).items():
        if path.read_text() != content:
            write_atomic(path, content.encode())
            changed.append(path)
    return changed


def text(path: Path) -> str:
    """Return the hand-written part of a page, with the mark."""
    if not path.is_file():
        raise StudyError(f"the page {path} is missing: write its text, or restore it from the repository")
    written, mark, _ = path.read_text().partition(MARK)
    if not mark:
        raise StudyError(f"the page {path} lacks the line {MARK!r}, below which tables are written: add it")
    return written + mark


def overview(by_page: dict[str, list[Study]], docs: Path) -> str:
    """Return the overview: its text, and how the claims of each page came out."""
    own = {}
    for page, studies in by_page.items():
        own[f"[{PAGES[page]}](results/{page}.md)"] = [entry for study in studies for entry in entries(study, docs)]
    return "\n\n".join([text(docs / "results.md"), counts_tables(own)]) + "\n"


def system_page(page: str, studies: Sequence[Study], docs: Path) -> str:
    """Return the page of a system: its text, then tables, claims and figures of each study that was measured."""
    judged = {study.name: entries(study, docs) for study in studies}
    shared = shared_reasons(judged.values())
    parts = [text(docs / "results" / f"{page}.md"), READING]
    if shared:
        parts.append(f"Claims are out of regime for this reason, unless their table gives another: {shared}.")
    missing: list[tuple[Study, str, list[Entry]]] = []
    for study in studies:
        kept = {scale: load_kept(study.name, scale, docs) for scale in study.scales}
        largest = [scale for scale, one in kept.items() if one is not None][-1:]
        for scale, one in kept.items():
            own = [entry for entry in judged[study.name] if entry.scale == scale]
            if one is None:
                missing.append((study, scale, own))
            elif own or scale in largest:  # where no claim stands at a scale, a larger one has the table
                parts += study_parts(study, scale, one, docs)
                if own and not study.table:
                    parts.append(claims_tables(own, shared))
    if missing:
        parts += ["## Not measured yet", *missing_parts(missing)]
    return "\n\n".join(parts) + "\n"


def shared_reasons(judged: Iterable[Sequence[Entry]]) -> str:
    """Return why claims are out of regime in the most studies of a page; empty where no two give the same reasons."""
    reasons = Counter(filter(None, map(regime_words, judged)))
    if not reasons:
        return ""
    words, studies = reasons.most_common(1)[0]
    if studies == 1:
        return ""
    return words


def missing_parts(missing: Sequence[tuple[Study, str, list[Entry]]]) -> Iterator[str]:
    """Return what claims wait for, as commands, and then the studies at scales that no claim waits for.

    Args:
        missing: study, scale, and the claims that the scale would decide.
    """
    if waited_for := [missing_words(study, scale, found) for study, scale, found in missing if found]:
        yield "\n".join(waited_for)
    others: dict[str, list[str]] = {}
    for study, scale, found in missing:
        if not found:
            others.setdefault(scale, []).append(f"`{study.name}`")
    if others:
        scales = [f"scale {scale} of {', '.join(names)}" for scale, names in others.items()]
        yield f"Not run either: {'; '.join(scales)}."


def missing_words(study: Study, scale: str, found: Sequence[Entry]) -> str:
    """Return the command that measures a study at a scale, and the claims that it would decide."""
    verdicts = " or ".join(sorted({str(entry.verdict) for entry in found}))
    cost = cost_words(study, scale, [entry.claim for entry in found])
    command = f"- `shoal study {study.name} --scale {scale}`: {verdicts}: {cost}, {planned_words(found)}"
    return "\n".join([command, *cases_of_rules(found)])


def paper_words(entry: Entry) -> str:
    """Return the paper's number for a claim in brackets; empty where the claim says it, or the paper prints none."""
    paper = paper_value(entry)
    if paper and paper.lstrip("+") not in entry.claim.claim:
        return f" ({paper})"
    return ""


def cases_of_rules(found: Sequence[Entry]) -> list[str]:
    """Return a line for each rule of claims `case: rule`, with its cases; rules may differ in a number at their end.

    `IID: ACC is within 3 points of the paper's 66.5`, and the same at Dirichlet 0.5 of 49.5, are one line: `ACC is
    within 3 points of the paper's 66.5 (IID), 49.5 (Dirichlet 0.5)`.
    """
    rules: dict[str, list[Entry]] = {}
    for entry in found:
        rules.setdefault(NUMBER_AT_END.sub("", case_and_rule(entry)[1]), []).append(entry)
    return [f"  - {rule_words(rule, own)}" for rule, own in rules.items()]


def case_and_rule(entry: Entry) -> tuple[str, str]:
    """Return the two parts of a claim `case: rule`; the case is empty where the claim names none."""
    case, colon, rule = entry.claim.claim.partition(": ")
    if colon:
        return case, rule
    return "", case


def rule_words(rule: str, found: Sequence[Entry]) -> str:
    """Return a rule with its cases in words.

    Args:
        rule: without the number at its end.
        found: the claims of this rule.
    """
    if len(found) == 1:
        return f"{found[0].claim.claim}{paper_words(found[0])}"
    if rule == case_and_rule(found[0])[1]:
        return f"{rule}: {'; '.join(f'{case_and_rule(entry)[0]}{paper_words(entry)}' for entry in found)}"
    cases = []
    for entry in found:
        case, whole = case_and_rule(entry)
        cases.append(f"{whole.removeprefix(rule)} ({case})".removesuffix(" ()"))
    return f"{rule}{', '.join(cases)}"


def planned_words(found: Sequence[Entry]) -> str:
    """Say how many seeds the claims of a study ask for."""
    planned = sorted({entry.checked.seeds for entry in found})
    seeds = str(planned[0]) if len(planned) == 1 else f"{planned[0]} to {planned[-1]}"
    return plural(seeds, "seed")


def study_parts(study: Study, scale: str, one: Kept, docs: Path) -> Iterator[str]:
    """Heading, table, figures and origin of a kept result."""
    yield f"## {study.title[:1].upper()}{study.title[1:]}"
    if study.table:
        yield sentence(study.scales[scale].about)
        yield function(study, study.table)(study, scale, one)
    else:
        yield from usual_table(study, scale, docs)
    if one.failed:
        yield failed_words(study, one)
    for name, caption in study.images.items():
        path = image_file(study.name, scale, name, docs)
        if path.is_file():
            yield f"![{caption}](../images/{path.name})"
    yield origin(study, scale, one) + lent_words(study, scale, docs)
    if changed := one.changed(study):
        some = "All settings" if len(changed) == len(one.digests) else f"Settings of {', '.join(sorted(changed))}"
        yield f"**{some} have changed since this was measured.**"


def usual_table(study: Study, scale: str, docs: Path) -> Iterator[str]:
    """Return what the scale is, and the table of means over seeds."""
    rows = kept_table(study, scale, docs)
    head, body = values_cells(study, scale, rows)
    seeds = {cells[-1] for cells in body}
    about = sentence(study.scales[scale].about)
    if len(seeds) == 1:
        counted = seeds.pop()
        head = head[:-1]
        body = [cells[:-1] for cells in body]
        about += f" {plural(counted, 'seed')}."
    yield about
    yield table(head, body, "l" + "r" * (len(head) - 1))


def failed_words(study: Study, one: Kept) -> str:
    """Which runs have no number, cell by cell, and why the first of each has none."""
    cells: dict[tuple[str, str], list[FailedRun]] = {}
    for run in one.failed:
        cells.setdefault((run.row, run.column), []).append(run)
    columns = study.columns_at(one.scale)
    parts = []
    for (row, column), runs in cells.items():
        if row in study.rows and column in columns:
            place = study.rows[row].caption + (f", {columns[column].caption}" if len(columns) > 1 else "")
            seeds = ", ".join(str(run.seed) for run in runs)
            parts.append(f"{place}, seed{'s' if len(runs) > 1 else ''} {seeds} ({runs[0].message.rstrip('.')})")
    return f"Runs that failed and have no number: {'; '.join(parts)}."


def sentence(words: str) -> str:
    """Words as a sentence."""
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"


def values_table(study: Study, scale: str, rows: Sequence[StudyRow]) -> str:
    """Ours beside the paper's, in Markdown."""
    head, body = values_cells(study, scale, rows)
    return table(head, body, "l" + "r" * (len(head) - 1))


def values_cells(study: Study, scale: str, rows: Sequence[StudyRow]) -> tuple[list[str], list[list[str]]]:
    """Return ours beside the paper's: metrics across where the study has fewer columns than metrics, else its columns.

    Args:
        study, scale: of the result.
        rows: of the result.

    Returns:
        The heads of the columns, and the rows.
    """
    by_place = {(row.row_key, row.column_key, row.metric): row for row in rows}
    shown = shown_metrics(study, scale, rows)
    digits = {metric: digits_of(study, metric, rows) for metric in shown}
    filled = {row.column_key for row in rows if row.metric in shown}
    columns = [column for key, column in study.columns_at(scale).items() if key in filled]
    if len(columns) == 1 or len(shown) > len(columns):
        head = ["", *shown]
        if len(columns) == 1 < len(study.columns_at(scale)):
            head[0] = columns[0].caption
        lines = lines_of_metrics(study, columns, shown)
    else:
        head = [shown[0] if len(shown) == 1 else "", *(column.caption for column in columns)]
        lines = lines_of_columns(study, columns, shown)
    body = []
    for label, places in lines:
        found = [by_place.get(place) for place in places]
        if any(found):
            body.append([label, *(cell(one, digits) for one in found), counts(found)])
    return [*head, "seeds"], body


Place = tuple[str, str, str]
"""Row, column and metric of a number."""


def lines_of_metrics(
    study: Study, columns: Sequence[Column], metrics: Sequence[str]
) -> Iterator[tuple[str, list[Place]]]:
    """Yield the label and the numbers of a line for each row in each column, with metrics across."""
    for column in columns:
        for key, row in study.rows.items():
            label = f"{column.caption}: {row.caption}" if len(columns) > 1 else row.caption
            yield label, [(key, column.key, metric) for metric in metrics]


def lines_of_columns(
    study: Study, columns: Sequence[Column], metrics: Sequence[str]
) -> Iterator[tuple[str, list[Place]]]:
    """Yield the label and the numbers of a line for each metric of each row, with columns across."""
    for key, row in study.rows.items():
        for metric in metrics:
            label = f"{row.caption}, {metric}" if len(metrics) > 1 else row.caption
            yield label, [(key, column.key, metric) for column in columns]


def shown_metrics(study: Study, scale: str, rows: Sequence[StudyRow]) -> list[str]:
    """Return the metrics that a table shows: those that the study names, by default its first five, or one, of them."""
    there = {row.metric for row in rows}
    default = study.metrics[:1]
    if len(study.columns_at(scale)) == 1:
        default = study.metrics[:5]
    return [metric for metric in study.shown or default if metric in there]


def digits_of(study: Study, metric: str, rows: Sequence[StudyRow]) -> int:
    """Digits after the point of a metric in a table."""
    if study.percent and metric in study.metrics:
        return 1
    largest = max(abs(row.mean) for row in rows if row.metric == metric)
    return 3 if largest < 10 else 1 if largest < 1000 else 0


def cell(row: StudyRow | None, digits: dict[str, int]) -> str:
    """Return a number of ours with its deviation, if seeds differ in these digits, and the paper's in brackets."""
    if row is None:
        return ""
    d = digits[row.metric]
    words = f"{row.mean:,.{d}f}"
    if round(row.std, d):
        words += f" ± {row.std:,.{d}f}"
    if row.paper is not None:
        words += f" ({row.paper:,.{d}f})"
    return words


def counts(rows: Sequence[StudyRow | None]) -> str:
    """How many seeds the cells of a row have."""
    there = sorted({row.seeds for row in rows if row is not None})
    return f"{there[0]} to {there[-1]}" if len(there) > 1 else str(there[0])


def lent_words(study: Study, scale: str, docs: Path) -> str:
    """Return which other studies have measured cells of a table, in a sentence."""
    if lent := lenders(study, scale, docs):
        return f" With cells of {', '.join(f'`{name}`' for name in lent)}."
    return ""


def origin(study: Study, scale: str, one: Kept) -> str:
    """Say where a kept result comes from; its file names the commits, versions and machines."""
    made = one.provenance
    laid = set_options(one.overrides)
    took = "" if made.seconds is None else f", {made.seconds / 60:,.1f} minutes"
    data = f"[every seed](../../shoal_research/results/{study.name}-{scale}.json)"
    return f"`shoal study {study.name} --scale {scale}{laid}`: {made.date}{took}; {data}."
