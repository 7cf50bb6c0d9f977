"""A study's result: its rows and checked claims, kept as result.json and table.csv beside the study's figures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from engine import places
from engine.codec import write_atomic
from studies.claims import CheckedClaim, check
from studies.definition import Study
from studies.rows import StudyRow


@dataclass(frozen=True)
class StudyResult:
    """What a study came to.

    Attributes:
        study, scale: names.
        about: what the scale is, in words.
        percent: whether metrics of rows are times 100.
        rows: the table.
        claims: the paper's statements beside what was measured.
        runs: names of the runs; of a study that is simulated, none.
        folder: where tables and figures are.
    """

    study: str
    scale: str
    about: str
    percent: bool
    rows: tuple[StudyRow, ...]
    claims: tuple[CheckedClaim, ...]
    runs: tuple[str, ...]
    folder: str

    def plain(self) -> dict[str, Any]:
        """As nested dictionaries and lists of JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def study_folder(name: str, scale: str) -> Path:
    """Where a study's table and figures are."""
    return places.home() / "results" / "studies" / f"{name}-{scale}"


def write_result(study: Study, scale: str, rows: Sequence[StudyRow], runs: Sequence[str] = ()) -> StudyResult:
    """Check the claims, and write the result beside its figures."""
    folder = study_folder(study.name, scale)
    folder.mkdir(parents=True, exist_ok=True)
    result = StudyResult(
        study.name,
        scale,
        study.scales[scale].about,
        study.percent,
        tuple(rows),
        tuple(check(claim, rows) for claim in study.claims),
        tuple(runs),
        str(folder),
    )
    write_atomic(folder / "result.json", (json.dumps(result.plain(), indent=1) + "\n").encode())
    pd.DataFrame(result.plain()["rows"]).to_csv(folder / "table.csv", index=False)
    return result
