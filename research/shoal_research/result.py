"""A study's result: its rows and checked claims, written as result.json and table.csv beside the figures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from shoal.engine.settings import places
from shoal.sweeps.files import write_result_files
from shoal_research.claims import CheckedClaim, check
from shoal_research.definition import Claim, Study
from shoal_research.digests import decisive, digests
from shoal_research.provenance import Provenance
from shoal_research.rows import StudyRow


@dataclass(frozen=True)
class FailedRun:
    """A run that failed by itself, so that its cell has no number for this seed.

    Attributes:
        row, column: keys of its cell.
        seed: of the run.
        message: why it failed.
    """

    row: str
    column: str
    seed: int
    message: str


@dataclass(frozen=True)
class RunWords:
    """Words on a run, such as the method that was chosen for it.

    Attributes:
        row, column: keys of its cell.
        seed: of the run.
        words: by name.
    """

    row: str
    column: str
    seed: int
    words: dict[str, str]


@dataclass(frozen=True)
class CellRun:
    """The run of a cell with a seed.

    Attributes:
        row, column: keys of the cell.
        seed: of the run.
        run: its name.
    """

    row: str
    column: str
    seed: int
    run: str


@dataclass(frozen=True)
class StudyResult:
    """The result of a study at a scale.

    Attributes:
        study, scale: names.
        about: the scale in words.
        percent: whether the metrics of rows are multiplied by 100.
        rows: the table.
        claims: the paper's statements that the scale can judge, with verdicts.
        runs: names of the runs; empty for a simulated study.
        folder: of tables and figures.
        digests: of the settings of each cell, by `row/column` (`shoal_research.digests`).
        overrides: settings that replaced those of all cells and change numbers.
        rules: what decides each claim (`rule_of`), of those that were written down before the first run of their cells.
        provenance: code, versions, machine and time of the numbers.
        failed: the runs without a number.
        words: on each run, where the study has a function that describes runs.
        cells: the run of each cell with each seed; empty for a simulated study.
    """

    study: str
    scale: str
    about: str
    percent: bool
    rows: tuple[StudyRow, ...]
    claims: tuple[CheckedClaim, ...]
    runs: tuple[str, ...]
    folder: str
    digests: dict[str, str] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    rules: tuple[dict[str, Any], ...] = ()
    provenance: Provenance | None = None
    failed: tuple[FailedRun, ...] = ()
    words: tuple[RunWords, ...] = ()
    cells: tuple[CellRun, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return nested dictionaries and lists of JSON values."""
        result: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return result


def study_folder(name: str, scale: str) -> Path:
    """Return the folder of a study's table and figures."""
    return places.home() / "results" / "studies" / f"{name}-{scale}"


def rule_of(study: Study, scale: str, claim: Claim) -> dict[str, Any]:
    """Return what decides the verdict on a claim, as JSON: its sides, margin and seeds, but not its words."""
    decisive_parts = {"left", "op", "right", "margin", "every_seed"}
    return {**claim.model_dump(mode="json", include=decisive_parts), "seeds": study.seeds_of(claim, scale)}


def write_result(
    study: Study,
    scale: str,
    rows: Sequence[StudyRow],
    provenance: Provenance,
    overrides: Mapping[str, Any],
    rules: Sequence[dict[str, Any]],
    cells: Sequence[CellRun] = (),
    failed: Sequence[FailedRun] = (),
    words: Sequence[RunWords] = (),
) -> StudyResult:
    """Judge the claims, and write the result beside its figures.

    Args:
        study, scale: of the result.
        rows: the table.
        provenance: of its numbers.
        overrides: settings that replaced those of all cells.
        rules: of the claims that were written down before their cells were run.
        cells: the run of each cell with each seed.
        failed: the runs without a number.
        words: on each run.
    """
    folder = study_folder(study.name, scale)
    measured = {(row.row_key, row.column_key) for row in rows}
    claims = study.claims_at(scale)
    all_digests = digests(study, scale, overrides)
    result = StudyResult(
        study=study.name,
        scale=scale,
        about=study.scales[scale].about,
        percent=study.percent,
        rows=tuple(rows),
        claims=tuple(check(study, scale, claim, rows) for claim in claims),
        runs=tuple(cell.run for cell in cells),
        folder=str(folder),
        digests={cell: value for cell, value in all_digests.items() if tuple(cell.split("/")) in measured},
        overrides=decisive(overrides),
        rules=tuple(rules),
        provenance=provenance,
        failed=tuple(failed),
        words=tuple(words),
        cells=tuple(cells),
    )
    content = result.to_json()
    write_result_files(folder, content, pd.DataFrame(content["rows"]), "table.csv")
    return result
