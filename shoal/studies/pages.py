"""The pages of docs/results, made from the results that are kept and from hand-written text.

`docs/results.md` is the overview: a row for each system. `docs/results/SYSTEM.md` has the tables, claims and figures of
its studies under the text of `docs/results/text/SYSTEM.md`. A test compares the pages with what this module makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.engine.store.codec import write_atomic
from shoal.studies.claims_tables import claims_tables, paper_value, plural
from shoal.studies.cost import cost_words
from shoal.studies.definition import Study, StudyError, function, load_study, study_names
from shoal.studies.kept import DOCS, Kept, image_file, load_kept
from shoal.studies.result import FailedRun
from shoal.studies.rows import StudyRow
from shoal.studies.shared_cells import kept_table, lenders
from shoal.studies.verdict_counts import counts_tables
from shoal.studies.verdicts import Entry, entries
from shoal.studies.wording import table
from shoal.sweeps.set_options import set_options

PAGES = {
    "fedpnp": "FedPNP: clustering with a past negatives pool",
    "cfcl": "CF-CL: contrastive learning with exchange between devices",
    "uifca": "UIFCA: clustering by generative flows",
    "cfl": "CFL: clustered federated learning",
    "ssd": "SSD: soft separation and distillation",
    "beyond": "Beyond the papers",
    "unseen": "Data that no default was chosen on",
}
"""Titles of the pages, in their order."""
HEADER = "<!-- Made by `make results` from shoal/studies/results and docs/results/text: edit those. -->"

READING = (
    "Tables show means ± deviations over seeds, and the paper's values in brackets. "
    "[How claims are judged](../results.md#claims-and-verdicts)."
)


def page_of(study: Study) -> str:
    """The page that shows a study."""
    return study.page or study.system


def make_pages(docs: Path = DOCS) -> dict[Path, str]:
    """The content of every page, by file.

    Raises:
        StudyError: a study names a page that is not there, or the text of a page is missing.
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
        if not path.exists() or path.read_text() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content.encode())
            changed.append(path)
    return changed


def text(name: str, docs: Path) -> str:
    """A hand-written part."""
    path = docs / "results" / "text" / f"{name}.md"
    if not path.is_file():
        raise StudyError(f"the text {path} is missing: write it, or restore it from the repository")
    return path.read_text().strip()


def overview(by_page: dict[str, list[Study]], docs: Path) -> str:
    """Return the overview: a hand-written answer for each system, and how its claims came out."""
    own = {}
    for page, studies in by_page.items():
        name = PAGES[page].partition(":")[0]
        own[f"[{name}](results/{page}.md)"] = [entry for study in studies for entry in entries(study, docs)]
    return "\n\n".join([HEADER, "# Results", text("overview", docs), counts_tables(own)]) + "\n"


def system_page(page: str, studies: Sequence[Study], docs: Path) -> str:
    """Return the page of a system: its text, then tables, claims and figures of each study that was measured."""
    parts = [HEADER, f"# {PAGES[page]}", text(page, docs), READING]
    missing = []
    for study in studies:
        found = entries(study, docs)
        kept = {scale: load_kept(study.name, scale, docs) for scale in study.scales}
        largest = [scale for scale, one in kept.items() if one is not None][-1:]
        for scale, one in kept.items():
            own = [entry for entry in found if entry.scale == scale]
            if one is None:
                missing.append(missing_words(study, scale, own))
            elif own or scale in largest:  # where no claim stands at a scale, a larger one has the table
                parts += study_parts(study, scale, one, docs)
                if own and not study.table:
                    parts.append(claims_tables(own))
    if missing:
        parts += ["## Not measured yet", "\n".join(missing)]
    return "\n\n".join(parts) + "\n"


def missing_words(study: Study, scale: str, found: Sequence[Entry]) -> str:
    """Return the command that measures a study at a scale, and the claims that it would decide."""
    command = f"- `shoal study {study.name} --scale {scale}`"
    if not found:
        return command
    if study.table:
        claims = cases_of_rules(found)
    else:
        claims = [f"  - {entry.claim.claim}{paper_words(entry)}" for entry in found]
    verdicts = " or ".join(sorted({str(entry.verdict) for entry in found}))
    cost = cost_words(study, scale, [entry.claim for entry in found])
    return "\n".join([f"{command}: {verdicts}: {cost}, {planned_words(found)}", *claims])


def paper_words(entry: Entry) -> str:
    """Return the paper's number for a claim in brackets; empty where the claim says it, or the paper prints none."""
    paper = paper_value(entry)
    if paper and paper.lstrip("+") not in entry.claim.claim:
        return f" ({paper})"
    return ""


def cases_of_rules(found: Sequence[Entry]) -> list[str]:
    """Return a line for each rule of claims `case: rule`, with its cases."""
    cases: dict[str, list[str]] = {}
    for entry in found:
        case, _, rule = entry.claim.claim.partition(": ")
        cases.setdefault(rule, []).append(case)
    return [f"  - {rule}: {'; '.join(own)}" for rule, own in cases.items()]


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
    """Ours beside the paper's: metrics as columns where the study has one column, else its columns.

    Args:
        study, scale: of the result.
        rows: of the result.

    Returns:
        The heads of the columns, and the rows.
    """
    columns = list(study.columns_at(scale).values())
    there = {row.metric for row in rows}
    shown = [metric for metric in study.shown or study.metrics[: 5 if len(columns) == 1 else 1] if metric in there]
    digits = {metric: digits_of(study, metric, rows) for metric in shown}
    by_place = {(row.row_key, row.column_key, row.metric): row for row in rows}
    body = []
    if len(columns) == 1:
        head = ["", *shown, "seeds"]
        for key, row in study.rows.items():
            found = [by_place.get((key, columns[0].key, metric)) for metric in shown]
            if any(found):
                body.append([row.caption, *(cell(one, digits) for one in found), counts(found)])
    else:
        head = [shown[0] if len(shown) == 1 else "", *(column.caption for column in columns), "seeds"]
        for key, row in study.rows.items():
            for metric in shown:
                found = [by_place.get((key, column.key, metric)) for column in columns]
                if any(found):
                    label = f"{row.caption}, {metric}" if len(shown) > 1 else row.caption
                    body.append([label, *(cell(one, digits) for one in found), counts(found)])
    return head, body


def digits_of(study: Study, metric: str, rows: Sequence[StudyRow]) -> int:
    """Digits after the point of a metric in a table."""
    if study.percent and metric in study.metrics:
        return 1
    largest = max(abs(row.mean) for row in rows if row.metric == metric)
    return 3 if largest < 10 else 1 if largest < 1000 else 0


def cell(row: StudyRow | None, digits: dict[str, int]) -> str:
    """A number of ours, and the paper's in brackets."""
    if row is None:
        return ""
    d = digits[row.metric]
    paper = "" if row.paper is None else f" ({row.paper:,.{d}f})"
    return f"{row.mean:,.{d}f} ± {row.std:,.{d}f}{paper}"


def counts(rows: Sequence[StudyRow | None]) -> str:
    """How many seeds the cells of a row have."""
    there = sorted({row.seeds for row in rows if row is not None})
    return f"{there[0]} to {there[-1]}" if len(there) > 1 else str(there[0])


def lent_words(study: Study, scale: str, docs: Path) -> str:
    """Return which cells other studies have measured, in a sentence."""
    lent = lenders(study, scale, docs)
    parts = [f"{', '.join(places)} of `{name}`" for name, places in lent.items()]
    if parts:
        return f" Cells of other studies: {'; '.join(parts)}."
    return ""


def origin(study: Study, scale: str, one: Kept) -> str:
    """Say where a kept result comes from; its file names the commits, versions and machines."""
    made = one.provenance
    laid = set_options(one.overrides)
    took = "" if made.seconds is None else f", {made.seconds / 60:,.1f} minutes"
    data = f"[every seed, commits, machine](../../shoal/studies/results/{study.name}-{scale}.json)"
    return f"`shoal study {study.name} --scale {scale}{laid}`: {made.date}{took}; {data}."
