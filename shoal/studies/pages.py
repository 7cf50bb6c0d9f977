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
from shoal.studies.claims import Verdict
from shoal.studies.definition import Study, StudyError, load_study, study_names
from shoal.studies.kept import DOCS, Kept, image_file, load_kept
from shoal.studies.rows import StudyRow
from shoal.studies.verdicts import Entry, entries, published
from shoal.studies.wording import given, interval_words, number

PAGES = {
    "fedpnp": "FedPNP: clustering with a past negatives pool",
    "cfcl": "CF-CL: contrastive learning with exchange between devices",
    "uifca": "UIFCA: clustering by generative flows",
    "cfl": "CFL: clustered federated learning",
    "ssd": "SSD: soft separation and distillation",
    "beyond": "Beyond the papers",
}
"""Titles of the pages, in their order."""
MADE = "<!-- Made by `make results` from shoal/studies/results and docs/results/text: edit those. -->"


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
            raise StudyError(f"study {study.name!r} is shown on page {page_of(study)!r}; there are {', '.join(PAGES)}")
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
        raise StudyError(f"the text {path} is missing: write it, or take it from the repository")
    return path.read_text().strip()


def overview(by_page: dict[str, list[Study]], docs: Path) -> str:
    """The page of all claims."""
    own = {page: [entry for study in studies for entry in entries(study, docs)] for page, studies in by_page.items()}
    counts = Counter(entry.verdict for found in own.values() for entry in found)
    parts = [MADE, "# Results", text("overview", docs)]
    parts.append(table(["verdict", "claims"], [[verdict, str(counts[verdict])] for verdict in Verdict], "lr"))
    for page, found in own.items():
        parts += [f"## {PAGES[page]}", f"Tables, figures and limits: [results/{page}.md](results/{page}.md)."]
        parts.append(claims_table(found))
    parts.append(text("digits", docs))
    return "\n\n".join(parts) + "\n"


def claims_table(found: Sequence[Entry]) -> str:
    """A row for each claim."""
    head = ["claim", "verdict", "ours", "the paper", "seeds", "sees / looks for", "`shoal study`"]
    return table(head, [claim_row(entry) for entry in found], "llrrrrl")


def claim_row(entry: Entry) -> list[str]:
    """A claim in the cells of a table."""
    checked = entry.checked
    there = checked.interval
    ours, seen = "", ""
    if there is not None:
        ours = f"on {checked.met} of {there.seeds}" if checked.every_seed else interval_words(there, checked.bound)
        seen = number(there.visible) if there.visible is not None else ""
    paper = entry.claim.paper or ""
    if not paper and (value := published(entry)) is not None:
        paper = given(value, signed=checked.bound is None)
    sought = given(checked.looked_for) if checked.looked_for is not None else ""
    return [
        entry.claim.claim,
        verdict_words(entry),
        ours,
        paper,
        seeds_words(len(checked.of_seeds), checked.seeds),
        "" if checked.every_seed or not (seen or sought) else f"{seen or '?'} / {sought or '?'}",
        f"`{entry.command.removeprefix('shoal study ')}`",
    ]


def seeds_words(there: int, planned: int) -> str:
    """How many seeds there are, and how many the rule has, where those are not as many."""
    if there < planned:
        return f"{there} of {planned}"
    return str(there) if there == planned else f"{there}, {planned} planned"


def verdict_words(entry: Entry) -> str:
    """The verdict, and what limits it."""
    checked, there = entry.checked, entry.checked.interval
    if entry.verdict is Verdict.MISSING and there is None:
        return "not measured yet"
    verdict = f"**{entry.verdict}**"
    if entry.verdict is Verdict.UNSEEN and there is not None and there.visible is not None:
        verdict += f" (below {number(there.visible)})"
    marks = [
        checked.note if there is not None else "",
        "settings have changed since" if entry.stale else "",
        "the rule was written after the run" if entry.later and entry.verdict is not Verdict.MISSING else "",
    ]
    return "; ".join(filter(None, (verdict, *marks)))


def system_page(page: str, studies: Sequence[Study], docs: Path) -> str:
    """The page of a system: its text, then a table and figures for each study of which results are kept."""
    parts = [MADE, f"# {PAGES[page]}", text(page, docs)]
    missing = []
    for study in studies:
        for scale in study.scales:
            one = load_kept(study.name, scale, docs)
            if one is None:
                missing.append(f"| {study.title} | `shoal study {study.name} --scale {scale}` |")
            else:
                parts += study_parts(study, scale, one, docs)
    if missing:
        parts += ["## Not measured yet", "| study | command |\n|---|---|\n" + "\n".join(missing)]
    return "\n\n".join(parts) + "\n"


def study_parts(study: Study, scale: str, one: Kept, docs: Path) -> Iterator[str]:
    """Heading, table, figures and origin of a kept result."""
    yield f"## {study.title[:1].upper()}{study.title[1:]}"
    yield f"{sentence(study.scales[scale].about)} Mean and deviation over seeds{paper_words(study)}."
    rows = one.table(study)
    yield values_table(study, scale, rows)
    if one.failed:
        yield failed_words(study, one)
    for name, caption in study.images.items():
        path = image_file(study.name, scale, name, docs)
        if path.is_file():
            yield f"![{caption}](../images/{path.name})"
    yield origin(study, scale, one)
    if changed := one.changed(study):
        some = "All settings" if len(changed) == len(one.digests) else f"Settings of {', '.join(sorted(changed))}"
        yield f"**{some} have changed since this was measured.**"


def failed_words(study: Study, one: Kept) -> str:
    """Which runs have no number, cell by cell, and why the first of each has none."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in one.failed:
        cells.setdefault((run["row"], run["column"]), []).append(run)
    columns = study.columns_at(one.scale)
    parts = []
    for (row, column), runs in cells.items():
        if row in study.rows and column in columns:
            place = study.rows[row].caption + (f", {columns[column].caption}" if len(columns) > 1 else "")
            seeds = ", ".join(str(run["seed"]) for run in runs)
            parts.append(f"{place}, seed{'s' if len(runs) > 1 else ''} {seeds} ({runs[0]['message'].rstrip('.')})")
    return f"Runs that failed and have no number: {'; '.join(parts)}."


def sentence(words: str) -> str:
    """Words as a sentence."""
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"


def paper_words(study: Study) -> str:
    """What stands in brackets."""
    return ", in brackets the paper's" if study.paper_values else ""


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


def origin(study: Study, scale: str, one: Kept) -> str:
    """Where a kept result comes from."""
    made: dict[str, Any] = one.provenance
    laid = "".join(f" --set {key}={value}" for key, value in flat(one.overrides))
    took = "" if made["seconds"] is None else f", {made['seconds'] / 60:,.1f} minutes of rounds in all"
    commits = ", ".join(made["commits"])
    return (
        f"`shoal study {study.name} --scale {scale}{laid}`: {made['date']}, commit {commits}, "
        f"torch {made['versions'].get('torch', 'unknown')}; {made['machine']}{took}. "
        f"[Every seed](../../shoal/studies/results/{study.name}-{scale}.json)."
    )


def flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as dotted keys."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def table(head: Sequence[str], body: Sequence[Sequence[str]], sides: str) -> str:
    """A table in Markdown; `sides` has l or r for each column."""
    rule = ["---:" if side == "r" else "---" for side in sides]
    escaped = [[value.replace("|", "\\|") for value in row] for row in body]
    return "\n".join(f"| {' | '.join(row)} |" for row in (list(head), rule, *escaped))
