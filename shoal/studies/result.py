"""A study's result: its rows and checked claims, kept as result.json and table.csv beside the study's figures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from shoal.data.csv_file import write_csv
from shoal.engine.settings import places
from shoal.engine.store.codec import write_atomic
from shoal.studies.claims import CheckedClaim, check
from shoal.studies.definition import Claim, Study
from shoal.studies.digests import decisive, digests
from shoal.studies.provenance import Provenance
from shoal.studies.rows import StudyRow


@dataclass(frozen=True)
class FailedRun:
    """A run of a study that failed by itself, so that its cell has no number of this seed.

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
class StudyResult:
    """What a study came to.

    Attributes:
        study, scale: names.
        about: what the scale is, in words.
        percent: whether metrics of rows are times 100.
        rows: the table.
        claims: the paper's statements that the scale can judge, beside what was measured.
        runs: names of the runs; of a study that is simulated, none.
        folder: where tables and figures are.
        digests: of the settings of each cell, by `row/column` (`shoal.studies.digests`).
        overrides: settings that were laid over all cells and change numbers.
        rules: what decided each claim when this was written (`rule_of`).
        provenance: where the numbers come from.
        failed: the runs that have no number.
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

    def to_json(self) -> dict[str, Any]:
        """As nested dictionaries and lists of JSON values."""
        result: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return result


def study_folder(name: str, scale: str) -> Path:
    """Where a study's table and figures are."""
    return places.home() / "results" / "studies" / f"{name}-{scale}"


def rule_of(study: Study, scale: str, claim: Claim) -> dict[str, Any]:
    """What decides the verdict on a claim, as JSON: its sides, margin and seeds, whatever its words."""
    decisive_parts = {"left", "op", "right", "margin", "every_seed"}
    return {**claim.model_dump(mode="json", include=decisive_parts), "seeds": study.seeds_of(claim, scale)}


def write_result(
    study: Study,
    scale: str,
    rows: Sequence[StudyRow],
    provenance: Provenance,
    overrides: Mapping[str, Any],
    runs: Sequence[str] = (),
    failed: Sequence[FailedRun] = (),
) -> StudyResult:
    """Judge the claims, and write the result beside its figures.

    Args:
        study, scale: of the result.
        rows: the table.
        provenance: where its numbers come from.
        overrides: settings that were laid over all cells.
        runs: names of the runs.
        failed: the runs that have no number.
    """
    folder = study_folder(study.name, scale)
    folder.mkdir(parents=True, exist_ok=True)
    measured = {(row.row_key, row.column_key) for row in rows}
    result = StudyResult(
        study.name,
        scale,
        study.scales[scale].about,
        study.percent,
        tuple(rows),
        tuple(check(study, scale, claim, rows) for claim in study.claims_at(scale)),
        tuple(runs),
        str(folder),
        {key: value for key, value in digests(study, scale, overrides).items() if tuple(key.split("/")) in measured},
        decisive(overrides),
        tuple(rule_of(study, scale, claim) for claim in study.claims_at(scale)),
        provenance,
        tuple(failed),
    )
    write_atomic(folder / "result.json", (json.dumps(result.to_json(), indent=1) + "\n").encode())
    write_csv(pd.DataFrame(result.to_json()["rows"]), folder / "table.csv")
    return result
