"""The pages of docs/results, made from the results that are kept and from hand-written text.

`docs/results.md` has a row for each claim, `docs/results/SYSTEM.md` tables and figures under the text of
`docs/results/text/SYSTEM.md`. Nothing else writes them, and a test compares them with what this makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.engine.store.codec import write_atomic
from shoal.review.results.summary import plural
from shoal.studies.claims import Verdict
from shoal.studies.definition import Study, StudyError, load_study, study_names
from shoal.studies.kept import DOCS, Kept, image_file, load_kept
from shoal.studies.rows import StudyRow
from shoal.studies.verdicts import Entry, entries, published
from shoal.studies.wording import as_written, interval_words, number, sign_of
from shoal.sweeps.set_options import set_options

PAGES = {
    "fedpnp": "FedPNP: clustering with a past negatives pool",
    "cfcl": "CF-CL: contrastive learning with exchange between devices",
    "uifca": "UIFCA: clustering by generative flows",
    "cfl": "CFL: clustered federated learning",
    "ssd": "SSD: soft separation and distillation",
    "beyond": "Beyond the papers",
}
"""Titles of the pages, in their order."""
HEADER = "<!-- Made by `make results` from shoal/studies/results and docs/results/text: edit those. -->"


def page_of(study: Study) -> str:
    """Return the page that shows a study."""
    return study.page or study.system


def make_pages(docs: Path = DOCS) -> dict[Path, str]:
    """Return the content of every page, by file.

    Raises:
        StudyError: a study names an unknown page, or the text of a page is missing.
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
    """Write every page, and return the files that changed."""
    changed = []
    for path, content in make_pages(docs).items():
        if not path.exists() or path.read_text() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content.encode())
            changed.append(path)
    return changed


def text(name: str, docs: Path) -> str:
    """Return a hand-written part."""
    path = docs / "results" / "text" / f"{name}.md"
    if not path.is_file():
        raise StudyError(f"the text {path} is missing: write it, or restore it from the repository")
    return path.read_text().strip()


def overview(by_page: dict[str, list[Study]], docs: Path) -> str:
    """Return the page of all claims."""
    own = {page: [entry for study in studies for entry in entries(study, docs)] for page, studies in by_page.items()}
    counts = Counter(entry.verdict for found in own.values() for entry in found)
    parts = [HEADER, "# Results", text("overview", docs)]
    parts.append(table(["verdict", "claims"], [[verdict, str(counts[verdict])] for verdict in Verdict], "lr"))
    for page, found in own.items():
        parts += [f"## {PAGES[page]}", f"Tables, figures and limits: [results/{page}.md](results/{page}.md)."]
        parts.append(claims_table(found))
    parts.append(text("digits", docs))
    return "\n\n".join(parts) + "\n"


def claims_table(found: Sequence[Entry]) -> str:
    """Return a table with a row for each claim."""
    head = ["claim", "verdict", "ours", "the paper", "seeds", "sees / looks for", "`shoal study`"]
    return table(head, [claim_row(entry) for entry in found], "llrrrrl")


def claim_row(entry: Entry) -> list[str]:
    """Return the cells of a claim's row."""
    return [
        entry.claim.claim,
        verdict_words(entry),
        measured_words(entry),
        paper_number(entry),
        seeds_cell(len(entry.checked.of_seeds), entry.checked.seeds),
        sensitivity(entry),
        f"`{entry.command.removeprefix('shoal study ')}`",
    ]


def measured_words(entry: Entry) -> str:
    """Return what was measured for a claim; empty where nothing was."""
    checked = entry.checked
    if checked.interval is None:
        return ""
    if checked.every_seed:
        return f"on {checked.met} of {checked.interval.seeds}"
    return interval_words(checked.interval, checked.bound)


def paper_number(entry: Entry) -> str:
    """Return the paper's words or number for a claim; empty where it prints none."""
    value = published(entry)
    if entry.claim.paper or value is None:
        return entry.claim.paper or ""
    return as_written(value, sign_of(entry.checked.bound))


def sensitivity(entry: Entry) -> str:
    """Return the smallest difference that the seeds can see, and the smallest that matters; ? where one is unknown."""
    checked = entry.checked
    visible = None
    if checked.interval:
        visible = checked.interval.visible
    if checked.every_seed or (visible is None and checked.looked_for is None):
        return ""
    sees = "?"
    if visible is not None:
        sees = number(visible)
    looks_for = "?"
    if checked.looked_for is not None:
        looks_for = as_written(checked.looked_for)
    return f"{sees} / {looks_for}"


def seeds_cell(measured: int, planned: int) -> str:
    """Return the number of measured seeds, and of planned ones if it differs."""
    if measured < planned:
        return f"{measured} of {planned}"
    if measured == planned:
        return str(measured)
    return f"{measured}, {planned} planned"


def verdict_words(entry: Entry) -> str:
    """Return the verdict, and what limits it."""
    interval = entry.checked.interval
    if entry.verdict is Verdict.MISSING and interval is None:
        return "not measured yet"
    verdict = f"**{entry.verdict}**"
    if entry.verdict is Verdict.UNSEEN and interval is not None and interval.visible is not None:
        verdict += f" (below {number(interval.visible)})"
    marks = [
        entry.checked.note if interval is not None else "",
        "settings have changed since" if entry.stale else "",
        "the rule was written after the run" if entry.later and entry.verdict is not Verdict.MISSING else "",
    ]
    return "; ".join(filter(None, (verdict, *marks)))


def system_page(page: str, studies: Sequence[Study], docs: Path) -> str:
    """Return the page of a system: its text, then a table and figures for each study with kept results."""
    parts = [HEADER, f"# {PAGES[page]}", text(page, docs)]
    missing = []
    for study in studies:
        for scale in study.scales:
            kept = load_kept(study.name, scale, docs)
            if kept is None:
                missing.append(f"| {study.title} | `shoal study {study.name} --scale {scale}` |")
            else:
                parts += study_parts(study, scale, kept, docs)
    if missing:
        parts += ["## Not measured yet", "| study | command |\n|---|---|\n" + "\n".join(missing)]
    return "\n\n".join(parts) + "\n"


def study_parts(study: Study, scale: str, kept: Kept, docs: Path) -> Iterator[str]:
    """Yield heading, table, figures and provenance of a kept result."""
    yield f"## {study.title[:1].upper()}{study.title[1:]}"
    brackets = ""
    if study.paper_values:
        brackets = ", in brackets the paper's"
    yield f"{sentence(study.scales[scale].about)} Mean and deviation over seeds{brackets}."
    yield values_table(study, scale, kept.table(study))
    if kept.failed:
        yield failed_words(study, kept)
    for name, caption in study.images.items():
        path = image_file(study.name, scale, name, docs)
        if path.is_file():
            yield f"![{caption}](../images/{path.name})"
    yield provenance_words(study, scale, kept)
    if changed := kept.changed(study):
        some = "All settings"
        if len(changed) != len(kept.digests):
            some = f"Settings of {', '.join(sorted(changed))}"
        yield f"**{some} have changed since this was measured.**"


def failed_words(study: Study, kept: Kept) -> str:
    """Return which runs have no number, cell by cell, and why the first run of each cell failed."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in kept.failed:
        cells.setdefault((run["row"], run["column"]), []).append(run)
    columns = study.columns_at(kept.scale)
    parts = []
    for (row, column), runs in cells.items():
        if row in study.rows and column in columns:
            place = study.rows[row].caption + (f", {columns[column].caption}" if len(columns) > 1 else "")
            seeds = ", ".join(str(run["seed"]) for run in runs)
            parts.append(f"{place}, {plural(len(runs), 'seed')} {seeds} ({runs[0]['message'].rstrip('.')})")
    return f"Runs that failed and have no number: {'; '.join(parts)}."


def sentence(words: str) -> str:
    """Return words with a capital letter and a full stop."""
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"


def values_table(study: Study, scale: str, rows: Sequence[StudyRow]) -> str:
    """Return our numbers beside the paper's, as a table in Markdown."""
    head, body = values_cells(study, scale, rows)
    return table(head, body, "l" + "r" * (len(head) - 1))


def values_cells(study: Study, scale: str, rows: Sequence[StudyRow]) -> tuple[list[str], list[list[str]]]:
    """Return our numbers beside the paper's: metrics as columns where the study has one column, else its columns.

    Args:
        study, scale: of the result.
        rows: of the result.

    Returns:
        The heads of the columns, and the rows.
    """
    columns = list(study.columns_at(scale).values())
    measured = {row.metric for row in rows}
    listed = study.shown or study.metrics[: 5 if len(columns) == 1 else 1]
    metrics = [metric for metric in listed if metric in measured]
    digits = {metric: digits_of(study, metric, rows) for metric in metrics}
    by_place = {(row.row_key, row.column_key, row.metric): row for row in rows}
    if len(columns) == 1:
        head = ["", *metrics, "seeds"]
        places = [
            (row.caption, [(row.key, columns[0].key, metric) for metric in metrics]) for row in study.rows.values()
        ]
    else:
        head = [metrics[0] if len(metrics) == 1 else "", *(column.caption for column in columns), "seeds"]
        places = [
            (
                f"{row.caption}, {metric}" if len(metrics) > 1 else row.caption,
                [(row.key, column.key, metric) for column in columns],
            )
            for row in study.rows.values()
            for metric in metrics
        ]
    body = []
    for label, keys in places:
        found = [by_place.get(key) for key in keys]
        if any(found):
            body.append([label, *(cell(row, digits) for row in found), counts(found)])
    return head, body


def digits_of(study: Study, metric: str, rows: Sequence[StudyRow]) -> int:
    """Return the digits after the point of a metric in a table."""
    if study.percent and metric in study.metrics:
        return 1
    largest = max(abs(row.mean) for row in rows if row.metric == metric)
    if largest < 10:
        return 3
    if largest < 1000:
        return 1
    return 0


def cell(row: StudyRow | None, digits: dict[str, int]) -> str:
    """Return our number, and the paper's in brackets."""
    if row is None:
        return ""
    shown = f",.{digits[row.metric]}f"
    paper = ""
    if row.paper is not None:
        paper = f" ({row.paper:{shown}})"
    return f"{row.mean:{shown}} ± {row.std:{shown}}{paper}"


def counts(rows: Sequence[StudyRow | None]) -> str:
    """Return how many seeds the cells of a row have."""
    numbers = sorted({row.seeds for row in rows if row is not None})
    if len(numbers) > 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return str(numbers[0])


def provenance_words(study: Study, scale: str, kept: Kept) -> str:
    """Return the command, date, commit, versions, machine and minutes of a kept result."""
    made = kept.provenance
    took = ""
    if made["seconds"] is not None:
        took = f", {made['seconds'] / 60:,.1f} minutes of rounds in all"
    return (
        f"`shoal study {study.name} --scale {scale}{set_options(kept.overrides)}`: {made['date']}, commit "
        f"{', '.join(made['commits'])}, torch {made['versions'].get('torch', 'unknown')}; {made['machine']}{took}. "
        f"[Every seed](../../shoal/studies/results/{study.name}-{scale}.json)."
    )


def table(head: Sequence[str], body: Sequence[Sequence[str]], sides: str) -> str:
    """Return a table in Markdown; `sides` has l or r for each column."""
    rule = ["---:" if side == "r" else "---" for side in sides]
    escaped = [[value.replace("|", "\\|") for value in row] for row in body]
    return "\n".join(f"| {' | '.join(row)} |" for row in (list(head), rule, *escaped))
