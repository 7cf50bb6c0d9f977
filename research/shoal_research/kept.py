"""Results that are kept in git: a small file a study and scale, from which the pages of docs/results are made.

`shoal study` writes a result to results/studies/, which is in no repository. `shoal claims --keep` copies a part of it
to shoal_research/results/: values of each seed, digests of settings, the rules of the claims, and the provenance of the
numbers, without paths of the machine.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

import shoal_research
from shoal.core.records import BadRecord, record_from_json, record_to_json
from shoal.engine.store.codec import read_json, write_atomic
from shoal.sweeps.files import RESULT
from shoal_research.clean_code import require_clean_code
from shoal_research.definition import Claim, Study, StudyError
from shoal_research.digests import digests
from shoal_research.kept_rounds import keep_rounds, rounds_of_cells
from shoal_research.provenance import Provenance, combined
from shoal_research.result import FailedRun, RunWords, rule_of, study_folder
from shoal_research.rows import Measured, StudyRow, study_row

RESULTS = Path(shoal_research.__file__).resolve().parent / "results"
"""The kept results that come with this installation."""
DOCS = RESULTS.parents[1] / "docs"
"""The pages of results in this installation's repository."""
PRODUCT_DOCS = RESULTS.parents[2] / "docs"
"""The product's pages there."""
MAX_IMAGE_BYTES = 300_000
"""Of a kept figure."""
SIGNIFICANT_DIGITS = 6
"""Of kept values."""


@dataclass(frozen=True)
class KeptRow:
    """A metric of a cell: its values, and the seeds that they are of; a cell without seeds has its mean alone."""

    row: str
    column: str
    metric: str
    values: tuple[float, ...]
    seeds: tuple[int, ...]


Placed = TypeVar("Placed", KeptRow, FailedRun, RunWords)


@dataclass(frozen=True)
class Kept:
    """A kept result.

    Attributes:
        study, scale: names.
        rows: the table.
        digests: of the settings of each cell when it was measured, by `row/column`.
        overrides: settings that replaced those of all cells.
        rules: what decided each claim when it was measured (`shoal_research.result.rule_of`).
        provenance: where its numbers come from.
        failed: the runs that have no number.
        words: on each run, where the study describes runs.
    """

    study: str
    scale: str
    rows: tuple[KeptRow, ...]
    digests: dict[str, str]
    overrides: dict[str, Any]
    rules: tuple[dict[str, Any], ...]
    provenance: Provenance
    failed: tuple[FailedRun, ...] = ()
    words: tuple[RunWords, ...] = ()

    def table(self, study: Study) -> list[StudyRow]:
        """Return the rows with the captions of today's study, without rows and columns that it no longer has."""
        columns = study.columns_at(self.scale)
        found = []
        for row in self.rows:
            if row.row in study.rows and row.column in columns:
                cell = Measured(study.rows[row.row], columns[row.column], ())
                found.append(study_row(study, cell, row.metric, row.values, row.seeds))
        return found

    def changed(self, study: Study) -> set[str]:
        """Return the cells, as `row/column`, whose settings differ from today's.

        A cell whose settings another cell has today, under another key, has not changed.
        """
        today = digests(study, self.scale, self.overrides)
        known = set(today.values())
        return {cell for cell, digest in self.digests.items() if digest not in known}

    def has_rule(self, study: Study, claim: Claim) -> bool:
        """Return whether the rule of a claim was the same when the result was measured; its words may differ."""
        return rule_of(study, self.scale, claim) in self.renamed(study).rules

    def renamed(self, study: Study) -> Kept:
        """Return the result with today's keys for cells whose settings another row or column of the study has today."""
        today = digests(study, self.scale, self.overrides)
        by_digest = {digest: place for place, digest in reversed(today.items())}
        keys = {
            place: by_digest[digest]
            for place, digest in self.digests.items()
            if today.get(place) != digest and digest in by_digest
        }
        if not keys:
            return self
        return replace(
            self,
            rows=tuple(in_place(row, keys) for row in self.rows),
            digests={keys.get(place, place): digest for place, digest in self.digests.items()},
            rules=tuple(with_keys(rule, keys) for rule in self.rules),
            failed=tuple(in_place(run, keys) for run in self.failed),
            words=tuple(in_place(run, keys) for run in self.words),
        )


def in_place(entry: Placed, keys: Mapping[str, str]) -> Placed:
    """Return a row, a failed run or words on a run with the new keys of its cell, `row/column` to `row/column`."""
    row, _, column = keys.get(f"{entry.row}/{entry.column}", f"{entry.row}/{entry.column}").partition("/")
    return replace(entry, row=row, column=column)


def with_keys(rule: Any, keys: Mapping[str, str]) -> Any:
    """Return a rule, or a side of it, with new keys of cells."""
    if not isinstance(rule, dict):
        return rule
    if rule.keys() >= {"row", "column"}:
        row, _, column = keys.get(f"{rule['row']}/{rule['column']}", f"{rule['row']}/{rule['column']}").partition("/")
        return {**rule, "row": row, "column": column}
    return {name: with_keys(part, keys) for name, part in rule.items()}


def cells_of_rule(rule: Any) -> set[str]:
    """Return the cells that a rule compares, as `row/column`."""
    if not isinstance(rule, dict):
        return set()
    if rule.keys() >= {"row", "column"}:
        return {f"{rule['row']}/{rule['column']}"}
    return {cell for part in rule.values() for cell in cells_of_rule(part)}


def kept_folder(docs: Path = DOCS) -> Path:
    """Return the folder of kept results: beside the studies, or below a folder of documentation elsewhere."""
    if docs == DOCS:
        return RESULTS
    return docs / "results" / "data"


def kept_file(study: str, scale: str, docs: Path = DOCS) -> Path:
    """Return the file of a kept result."""
    return kept_folder(docs) / f"{study}-{scale}.json"


def image_file(study: str, scale: str, name: str, docs: Path = DOCS) -> Path:
    """Return the file of a kept figure, given its path in the folder of the result."""
    return docs / "images" / f"{study}-{scale}-{name.replace('/', '-')}"


def load_kept(study: str, scale: str, docs: Path = DOCS) -> Kept | None:
    """Return a kept result; None where nothing is kept of the study at the scale.

    Raises:
        StudyError: the file holds something else.
    """
    path = kept_file(study, scale, docs)
    if not path.exists():
        return None
    return read_kept(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=256)
def read_kept(path: Path, changed: int) -> Kept:
    """Read the file of a kept result, once for each time at which it changed.

    Raises:
        StudyError: the file holds something else.
    """
    try:
        return record_from_json(Kept, read_json(path))
    except BadRecord as error:
        raise StudyError(f"{path} is no kept result of a study: {error}") from None


def keep(study: Study, scale: str, docs: Path = DOCS) -> Path:
    """Keep the newest result of a study at a scale, and its images.

    Where the result has some rows or columns only, the other kept cells with today's settings stay. So do kept figures,
    which show all cells.

    Returns:
        The file of the kept result.

    Raises:
        StudyError: there is no result; its code is not committed; it lacks cells that are kept with other settings; or
            an image or the table of rounds is too large.
    """
    folder = study_folder(study.name, scale)
    raw = read_result(study, scale)
    require_clean_code(study.name, scale, raw["provenance"]["commits"], DOCS.parent)
    content = to_json(raw)
    before = load_kept(study.name, scale, docs)
    if before is not None:
        before = before.renamed(study)
    missing = cells_to_preserve(study, content, before)
    images = {
        image_file(study.name, scale, name, docs): image_to_keep(folder / name)
        for name in study.images
        if (folder / name).is_file()
    }
    if before is not None and missing:
        content = with_cells(study, content, before, missing)
        images = {file: image for file, image in images.items() if not file.exists()}
    path = kept_file(study.name, scale, docs)
    path.parent.mkdir(parents=True, exist_ok=True)
    keep_rounds(path, rounds_of_cells(raw.get("cells", ()), (*study.metrics, study.curve)), missing)
    write_atomic(path, json_lines(content).encode())
    for file, image in images.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image)
    return path


def read_result(study: Study, scale: str) -> dict[str, Any]:
    """Read the newest result of a study at a scale.

    Raises:
        StudyError: there is none, or it has no provenance.
    """
    command = f"shoal study {study.name} --scale {scale}"
    path = study_folder(study.name, scale) / RESULT
    if not path.is_file():
        raise StudyError(f"study {study.name!r} has no result at scale {scale!r} yet: {command}")
    raw: dict[str, Any] = read_json(path)
    if not raw.get("provenance"):
        raise StudyError(f"the result of {study.name!r} does not say where its numbers come from: run {command} again")
    return raw


def cells_to_preserve(study: Study, content: dict[str, Any], before: Kept | None) -> list[str]:
    """Return the cells of a kept result, as `row/column`, that the study still runs and a new result lacks.

    Raises:
        StudyError: such cells are kept with other settings than those of the new result.
    """
    if before is None:
        return []
    lost = sorted(set(before.digests) - set(content["digests"]))
    missing = [cell for cell in lost if has_cell(study, before.scale, cell)]
    if before.overrides == content["overrides"]:
        stale = before.changed(study)
    else:
        stale = set(missing)
    if other := [cell for cell in missing if cell in stale]:
        command = f"shoal study {study.name} --scale {before.scale}"
        raise StudyError(
            f"the result of {study.name!r} lacks {', '.join(other)}, which are kept with other settings: measure these "
            f"cells too, make a table of all of them with {command} --gather, then keep it"
        )
    return missing


def with_cells(study: Study, content: dict[str, Any], before: Kept, cells: Collection[str]) -> dict[str, Any]:
    """Return the content of a kept file with some cells of the older file added.

    Args:
        study: the study.
        content: of the new file.
        before: the older file.
        cells: to be taken from it, as `row/column`.
    """

    def taken(entries: Sequence[KeptRow] | Sequence[FailedRun] | Sequence[RunWords]) -> list[dict[str, Any]]:
        return [record_to_json(entry) for entry in entries if f"{entry.row}/{entry.column}" in cells]

    order = list(study.rows)
    rows = [*content["rows"], *taken(before.rows)]
    failed = [*content.get("failed", []), *taken(before.failed)]
    words = [*content.get("words", []), *taken(before.words)]
    return {
        **content,
        "rows": sorted(rows, key=lambda row: order.index(row["row"]) if row["row"] in order else len(order)),
        "digests": {**content["digests"], **{cell: before.digests[cell] for cell in cells}},
        "rules": rules_of_both(content["rules"], before.rules, cells),
        "provenance": record_to_json(combined(before.provenance, record_from_json(Provenance, content["provenance"]))),
        **({"failed": failed} if failed else {}),
        **({"words": words} if words else {}),
    }


def rules_of_both(
    new: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]], preserved: Collection[str]
) -> list[dict[str, Any]]:
    """Return the rules that came before the numbers, where some cells are those of an older result.

    Args:
        new, before: rules of the new and of the older result.
        preserved: cells of the older result, as `row/column`: a rule on them must have been there then.
    """
    found = [rule for rule in new if cells_of_rule(rule).isdisjoint(preserved) or rule in before]
    return [*found, *(rule for rule in before if rule not in found)]


def image_to_keep(path: Path) -> bytes:
    """Return a figure as it is kept: a large one with 256 colours, which still shows every point.

    Raises:
        StudyError: it is still too large.
    """
    image = path.read_bytes()
    if len(image) > MAX_IMAGE_BYTES:
        few_colours = io.BytesIO()
        with Image.open(path) as full:
            full.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(few_colours, "png", optimize=True)
        image = few_colours.getvalue()
    if len(image) > MAX_IMAGE_BYTES:
        raise StudyError(f"{path} has {len(image):,} bytes with 256 colours; at most {MAX_IMAGE_BYTES:,} are kept")
    return image


def has_cell(study: Study, scale: str, cell: str) -> bool:
    """Return whether a study runs a cell, named `row/column`, at a scale."""
    row, column = cell.split("/")
    return row in study.rows and study.runs_at(scale, row, column)


def to_json(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a result.json that is kept."""
    rows = [
        {
            "row": row["row_key"],
            "column": row["column_key"],
            "metric": row["metric"],
            "values": [float(f"{value:.{SIGNIFICANT_DIGITS}g}") for value in row["values"] or [row["mean"]]],
            "seeds": row["of_seeds"],
        }
        for row in raw["rows"]
    ]
    optional = {name: raw[name] for name in ("failed", "words") if raw.get(name)}
    names = ("study", "scale", "digests", "overrides", "rules", "provenance")
    return {"rows": rows, **optional, **{name: raw[name] for name in names}}


def json_lines(content: dict[str, Any]) -> str:
    """Return JSON with a line a key, and a line a row of the table or a rule, so that a change can be read."""
    lines = []
    for key in ("study", "scale", "provenance", "overrides", "digests", "rules", "failed", "words", "rows"):
        value = content.get(key)
        text = json.dumps(value, sort_keys=True)
        if value and isinstance(value, list):
            text = "[\n  " + ",\n  ".join(json.dumps(item, sort_keys=True) for item in value) + "\n ]"
        if key in content:
            lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
