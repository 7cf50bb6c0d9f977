"""Results that are kept in git: a small file a study and scale, from which the pages of docs/results are made.

`shoal study` writes a result to results/studies/, which is in no repository. `shoal claims --keep` copies what is worth
keeping of it to shoal/studies/results/: values of each seed, digests of settings, the rules of the claims, and where the
numbers come from; no paths of the machine.
"""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from shoal import studies
from shoal.engine.store.codec import read_json, write_atomic
from shoal.studies.definition import Claim, Study, StudyError
from shoal.studies.digests import digests
from shoal.studies.provenance import both
from shoal.studies.result import rule_of, study_folder
from shoal.studies.rows import StudyRow

RESULTS = Path(studies.__file__).resolve().parent / "results"
"""The kept results that come with this installation."""
DOCS = RESULTS.parents[2] / "docs"
"""The documentation of this installation's repository."""
LARGEST_IMAGE = 300_000
"""Bytes of a kept figure, at most."""
PRECISION = 6
"""Significant digits of kept values."""


@dataclass(frozen=True)
class Kept:
    """A kept result.

    Attributes:
        study, scale: names.
        rows: the table, by keys: row, column, metric, values, seeds.
        digests: of the settings of each cell when it was measured, by `row/column`.
        overrides: settings that were laid over all cells.
        rules: what decided each claim when it was measured (`shoal.studies.result.rule_of`).
        provenance: commits, versions, machine, date and seconds (`shoal.studies.provenance.Provenance`).
        failed: the runs that have no number (`shoal.studies.result.FailedRun`).
    """

    study: str
    scale: str
    rows: tuple[dict[str, Any], ...]
    digests: dict[str, str]
    overrides: dict[str, Any]
    rules: tuple[dict[str, Any], ...]
    provenance: dict[str, Any]
    failed: tuple[dict[str, Any], ...] = ()

    def table(self, study: Study) -> list[StudyRow]:
        """The rows as the study names them today; those of rows and columns that are gone are left out."""
        columns = study.columns_at(self.scale)
        found = []
        for row in self.rows:
            if row["row"] not in study.rows or row["column"] not in columns:
                continue
            values = tuple(row["values"])
            seeds = tuple(row["seeds"])
            found.append(
                StudyRow(
                    study.rows[row["row"]].caption,
                    columns[row["column"]].caption,
                    row["metric"],
                    statistics.fmean(values),
                    statistics.stdev(values) if len(values) > 1 else 0.0,
                    len(values),
                    study.published(row["row"], row["column"], row["metric"]),
                    row["row"],
                    row["column"],
                    values if seeds else (),
                    seeds,
                )
            )
        return found

    def changed(self, study: Study) -> set[str]:
        """The cells, as `row/column`, whose settings are others by now."""
        today = digests(study, self.scale, self.overrides)
        return {cell for cell, digest in self.digests.items() if today.get(cell) != digest}

    def said(self, study: Study, claim: Claim) -> bool:
        """Whether the rule of a claim was the same when the result was measured: its wording may have changed."""
        return rule_of(study, self.scale, claim) in self.rules


def kept_file(study: str, scale: str, docs: Path = DOCS) -> Path:
    """Return the file of a kept result: beside the studies, or below a folder of documentation elsewhere."""
    folder = RESULTS if docs == DOCS else docs / "results" / "data"
    return folder / f"{study}-{scale}.json"


def image_file(study: str, scale: str, name: str, docs: Path = DOCS) -> Path:
    """Where a kept figure lies, given its path in the folder of the result."""
    return docs / "images" / f"{study}-{scale}-{name.replace('/', '-')}"


def load_kept(study: str, scale: str, docs: Path = DOCS) -> Kept | None:
    """A kept result; None where nothing is kept of the study at the scale."""
    path = kept_file(study, scale, docs)
    if not path.exists():
        return None
    raw = read_json(path)
    lists = {key: tuple(raw[key]) for key in ("rows", "rules", "failed") if key in raw}
    return Kept(**{**raw, **lists})


def keep(study: Study, scale: str, docs: Path = DOCS) -> Path:
    """Keep the newest result of a study at a scale, and its images.

    Of a result of some rows or columns, the cells that were kept before and are computed with the same settings stay;
    so do their figures, which show all of them.

    Returns:
        The file of the kept result.

    Raises:
        StudyError: there is no result; it lacks cells that are kept with other settings; or an image is too large.
    """
    folder = study_folder(study.name, scale)
    command = f"shoal study {study.name} --scale {scale}"
    if not (folder / "result.json").is_file():
        raise StudyError(f"study {study.name!r} has no result at scale {scale!r} yet: {command}")
    raw = read_json(folder / "result.json")
    if not raw.get("provenance"):
        raise StudyError(
            f"the result of {study.name!r} does not say where it comes from: put it together anew: {command}"
        )
    content = to_json(raw)
    before = load_kept(study.name, scale, docs)
    images = {name: image_to_keep(folder / name) for name in study.images if (folder / name).is_file()}
    lost = set(before.digests) - set(content["digests"]) if before else set()
    if before and (still := sorted(cell for cell in lost if known(study, scale, cell))):
        other = before.changed(study) if before.overrides == content["overrides"] else set(still)
        if gone := [cell for cell in still if cell in other]:
            raise StudyError(
                f"the result of {study.name!r} lacks {', '.join(gone)}, which are kept, and with other settings: "
                f"measure them too, put all of them together with {command} --gather, then keep it"
            )
        content = with_cells(study, content, before, still)
        images = {
            name: image for name, image in images.items() if not image_file(study.name, scale, name, docs).exists()
        }
    path = kept_file(study.name, scale, docs)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text_of(content).encode())
    for name, image in images.items():
        target = image_file(study.name, scale, name, docs)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(image)
    return path


def with_cells(study: Study, content: dict[str, Any], before: Kept, cells: Sequence[str]) -> dict[str, Any]:
    """What is kept of a result, with some cells of what was kept before it.

    Args:
        study: the study.
        content: what is kept of the result.
        before: what was kept.
        cells: to be taken from it, as `row/column`.
    """

    def theirs(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [dict(entry) for entry in entries if f"{entry['row']}/{entry['column']}" in cells]

    order = list(study.rows)
    rows = [*content["rows"], *theirs(before.rows)]
    failed = [*content.get("failed", []), *theirs(before.failed)]
    return {
        **content,
        "rows": sorted(rows, key=lambda row: order.index(row["row"]) if row["row"] in order else len(order)),
        "digests": {**content["digests"], **{cell: before.digests[cell] for cell in cells}},
        "provenance": both(before.provenance, content["provenance"]),
        **({"failed": failed} if failed else {}),
    }


def image_to_keep(path: Path) -> bytes:
    """A figure as it is kept: a large one with 256 colours, where every point still stands.

    Raises:
        StudyError: it is too large all the same.
    """
    image = path.read_bytes()
    if len(image) > LARGEST_IMAGE:
        few = io.BytesIO()
        with Image.open(path) as full:
            full.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(few, "png", optimize=True)
        image = few.getvalue()
    if len(image) > LARGEST_IMAGE:
        raise StudyError(f"{path} has {len(image):,} bytes with 256 colours; at most {LARGEST_IMAGE:,} are kept")
    return image


def known(study: Study, scale: str, cell: str) -> bool:
    """Whether a study still runs a cell, named `row/column`, at a scale."""
    row, column = cell.split("/")
    return row in study.rows and study.runs_at(scale, row, column)


def to_json(raw: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a result.json."""
    rows = [
        {
            "row": row["row_key"],
            "column": row["column_key"],
            "metric": row["metric"],
            "values": [rounded(value) for value in row["values"] or [row["mean"]]],
            "seeds": row["of_seeds"],
        }
        for row in raw["rows"]
    ]
    failed = {"failed": raw["failed"]} if raw.get("failed") else {}
    return {
        "rows": rows,
        **failed,
        **{k: raw[k] for k in ("study", "scale", "digests", "overrides", "rules", "provenance")},
    }


def rounded(value: float) -> float:
    """A value to `PRECISION` significant digits."""
    return float(f"{value:.{PRECISION}g}")


def text_of(content: dict[str, Any]) -> str:
    """JSON with a line a key, and a line a row of the table or a rule, so that a change can be read."""
    lines = []
    for key in ("study", "scale", "provenance", "overrides", "digests", "rules", "failed", "rows"):
        if key not in content:
            continue
        value = content[key]
        if isinstance(value, list):
            inner = ",\n  ".join(json.dumps(item, sort_keys=True) for item in value)
            lines.append(f" {json.dumps(key)}: [\n  {inner}\n ]" if value else f" {json.dumps(key)}: []")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, sort_keys=True)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
