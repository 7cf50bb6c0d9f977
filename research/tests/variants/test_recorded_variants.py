"""Variants give the numbers that were recorded when they were settings of their methods: weights to the bit."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.engine.workers.worker_processes import WorkerProcesses
from tests.engine.test_recorded_bits import (
    COLOUR,
    EXCHANGE,
    FLOWS,
    GROUPED,
    MAJORITY,
    POINTS,
    TWO_LABELS,
    check_recorded,
)

RECORDING = Path(__file__).with_name("recorded_variants.json")
FEW_CANDIDATES = {**EXCHANGE, "name": "cfcl_importance", "candidates": 20}
CASES = {
    "ssd_forms, poster": {
        "method": {
            "name": "ssd_forms",
            "form": "poster",
            "basis": "axis",
            "direction": "code",
            "stop": True,
            "gamma": 0.05,
        },
        "data": COLOUR,
        "augment": {"recipe": "strong"},
    },
    "cfl_criteria, absolute": {
        "method": {
            "name": "cfl_criteria",
            "criterion": "absolute",
            "eps1": 1e9,
            "eps2": 0.0,
            "adversaries": ["random"],
            "permute": True,
            "history": 0.5,
            "gamma_max": 0.0,
        },
        **GROUPED,
        "rounds": 4,
    },
    "cfl_criteria, adversaries": {
        "method": {
            "name": "cfl_criteria",
            "criterion": "relative",
            "min_age": 0,
            "adversaries": ["random"],
            "permute": True,
            "history": 0.5,
            "gamma_max": 0.0,
            "ratio": 0.9,
            "patience": 1,
        },
        **GROUPED,
        "rounds": 4,
    },
    "cfcl_importance": {
        "method": FEW_CANDIDATES,
        "partition": TWO_LABELS,
        "model": {"encoder": "pooled-conv"},
        "rounds": 50,
    },
    "cfcl_importance, pulled negatives": {
        "method": {
            **FEW_CANDIDATES,
            "negatives": "pulled",
            "macro": "ratio",
            "selector": "receiver",
            "reserve_kind": "random",
        },
        "partition": TWO_LABELS,
        "model": {"encoder": "pooled-conv"},
        "rounds": 50,
    },
    "cfcl_importance, fractions, pulled negatives": {
        "method": {
            **EXCHANGE,
            "name": "cfcl_importance",
            "negatives": "pulled",
            "selector": "receiver",
            "reserve_kind": "random",
        },
        "partition": TWO_LABELS,
        "model": {"encoder": "pooled-conv"},
        "rounds": 50,
    },
    "uifca_folds, from k-FED, held out": {
        "method": {**FLOWS, "name": "uifca_folds", "init": "kfed", "held_out": 0.2, "folds": 2, "warm_start": True},
        "data": POINTS,
        "partition": MAJORITY,
        "rounds": 4,
    },
    "uifca_held_out, from k-FED": {
        "method": {**FLOWS, "name": "uifca_held_out", "init": "kfed", "held_out": 0.2, "warm_start": True},
        "data": POINTS,
        "partition": MAJORITY,
        "rounds": 4,
    },
}


@pytest.fixture(scope="module")
def two_slots() -> Iterator[WorkerProcesses]:
    with WorkerProcesses(2) as slots:
        yield slots


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_recorded(home: Path, two_slots: WorkerProcesses, name: str) -> None:
    check_recorded(CASES[name], json.loads(RECORDING.read_text()), name, two_slots)
