"""Rows of kept tables that advice is backed by: sets on which `method.name: auto` was judged, with null baselines.

The kept study `unseen` has sets that were used for nothing else; `label_free.json` those that the rules were chosen on,
which say less.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shoal_research
from shoal.methods.auto import ENCODER, LAYERS, Facts, rule_for
from shoal.models.encoders import PIXELS
from shoal_research.definition import load_study
from shoal_research.kept import load_kept
from shoal_research.unseen.page import NULLS

RESULTS = Path(shoal_research.__file__).resolve().parent / "results"
UNSEEN = "unseen"
TUNING = "label_free.json"
SPACES = {ENCODER: "encoder", LAYERS: "encoder", PIXELS: "pixels"}
"""The names of spaces among the figures, by the encoder that images are clustered by."""

NULL_WORDS = {
    "random": "random labels",
    "raw": "K-means on raw values",
    "raw columns": "K-means on raw columns",
    "standardised": "K-means on standardised columns",
    "pixels": "K-means on pixels",
    "untrained": "K-means on an untrained encoder's features",
    "encoder": "K-means on the frozen encoder's features",
    "frozen": "K-means on the frozen encoder's features",
}
"""What null baselines are called in sentences."""


@dataclass(frozen=True)
class EvidenceRow:
    """A set on which a chosen method was judged.

    Attributes:
        set, partition: names.
        kind: image, vector, series.
        images: number of samples, of whatever kind.
        classes: number of classes, and of clusters.
        method: what auto chose, in a word or two.
        acc: of that method.
        baselines: ACC of each null baseline, by name.
    """

    set: str
    partition: str
    kind: str
    images: int
    classes: int
    method: str
    acc: float
    baselines: Mapping[str, float]

    @property
    def best(self) -> tuple[str, float]:
        """Name and ACC of the best null baseline."""
        return max(self.baselines.items(), key=lambda item: item[1])

    @property
    def behind(self) -> bool:
        """Whether a null baseline is better by more than .02."""
        return self.acc < self.best[1] - 0.02

    def sentence(self) -> str:
        """Return the row in a sentence.

        >>> EvidenceRow("stars", "iid", "image", 90, 3, "fedkmeans", 0.9, {"pixels": 0.4}).sentence()
        'stars (90 samples, 3 classes, iid): fedkmeans has ACC 0.900, and K-means on pixels 0.400'
        """
        name, acc = self.best
        about = f"{self.set} ({self.images:,} samples, {self.classes} classes, {self.partition})"
        return f"{about}: {self.method} has ACC {self.acc:.3f}, and {NULL_WORDS[name]} {acc:.3f}"


def unseen_rows() -> list[EvidenceRow] | None:
    """Return the runs of the kept study of unseen sets; None where it is not kept.

    Raises:
        StudyError: the kept file is damaged.
    """
    kept = load_kept(UNSEEN, "cpu")
    if kept is None:
        return None
    study = load_study(UNSEEN)
    values: dict[tuple[str, str], dict[str, float]] = {}
    for each in kept.rows:
        values.setdefault((each.row, each.column), {})[each.metric] = each.values[0]
    found = []
    for run in kept.words:
        own = values[run.row, run.column]
        found.append(
            EvidenceRow(
                set=study.rows[run.row].caption,
                partition=study.columns[run.column].caption,
                kind=run.words["kind"],
                images=int(own["samples"]),
                classes=int(own["classes"]),
                method=run.words["method"],
                acc=own["acc"],
                baselines={words: own[name] for name, words in NULLS.items() if name in own},
            )
        )
    return found


def tuning_figures(folder: Path = RESULTS) -> dict[str, Any]:
    """Return the figures of the tuning sets, `images` and `tables` by name."""
    found: dict[str, Any] = json.loads((folder / TUNING).read_text())
    return found


def tuning_rows(folder: Path = RESULTS) -> list[EvidenceRow]:
    """Return the sets that the rules were chosen on, with what the rules choose for each."""
    figures = tuning_figures(folder)
    found = []
    for name, each in figures["images"].items():
        rule = rule_for(facts_of_images(each))
        encoder = rule.settings["model"]["encoder"]
        space = SPACES[encoder]
        null = {name: each["spaces"][name]["acc"] for name in ("pixels", "encoder", "untrained")}
        method = f"K-means on {encoder}"
        acc = null[space]
        if "landmarks" in rule.settings["method"]:
            method = f"K-means by landmarks on {encoder}"
            acc = figures["landmarks"][name]["spaces"][space]["landmarks"]
        found.append(_row(name, "image", each, method, acc, null))
    for name, each in figures["tables"].items():
        standardise = rule_for(Facts("vector", each["samples"], spread=each["spread"])).settings["method"][
            "standardise"
        ]
        space = "standardised" if standardise else "raw"
        null = {"raw columns": each["spaces"]["raw"]["acc"]}
        found.append(_row(name, "vector", each, f"K-means on {space} columns", each["spaces"][space]["acc"], null))
    return found


def facts_of_images(figures: Mapping[str, Any]) -> Facts:
    """Return what the rules know of a tuning set of images, dealt to six clients."""
    return Facts(
        "image",
        figures["samples"] // 6,
        total=figures["samples"],
        clusters=figures["classes"],
        pixels=figures["pixels"],
        features=figures["features"],
    )


def _row(
    name: str, kind: str, figures: Mapping[str, Any], method: str, acc: float, null: Mapping[str, float]
) -> EvidenceRow:
    return EvidenceRow(name, "pooled", kind, figures["samples"], figures["classes"], method, acc, null)


def kept_sentence(study: str, column: str, rows: tuple[str, ...]) -> str:
    """Return mean ACC of some rows of a kept study, in a sentence; empty where it is not kept.

    Args:
        study: its name.
        column: of its table.
        rows: of its table.
    """
    kept = load_kept(study, "cpu")
    if kept is None:
        return ""
    definition = load_study(study)
    values = {row.row: row.values for row in kept.rows if row.column == column and row.metric == "acc"}
    scores = [
        f"{definition.rows[name].caption} {sum(values[name]) / len(values[name]) / 100:.3f}"
        for name in rows
        if values.get(name)
    ]
    return f"study {study}, ACC on {definition.columns[column].caption}: {'; '.join(scores)}"


def nearest_row(rows: list[EvidenceRow], kind: str, samples: int, classes: int | None) -> EvidenceRow | None:
    """Return the row of the same kind with the most similar number of samples and classes; None where there is none."""

    def distance(row: EvidenceRow) -> float:
        apart = abs(math.log(row.images / max(1, samples)))
        if classes:
            apart += abs(math.log(row.classes / classes))
        return apart

    alike = [row for row in rows if row.kind == kind]
    return min(alike, key=distance) if alike else None
