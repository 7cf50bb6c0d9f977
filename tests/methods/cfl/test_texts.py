"""CFL on texts: each training gives the network the lengths of its own batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.data.sets.prepare import store_folder
from shoal.data.sets.prepared import Manifest, write_prepared
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import make_settings
from shoal.methods.cfl import supervised
from tests.runs import numbers, straight

SETTINGS = {
    "method": {"name": "cfl", "criterion": "schedule", "schedule": [1]},
    "data": {"name": "words", "limit": None},
    "partition": {"kind": "iid", "clients": 2, "validation": 0.25},
    "local": {"epochs": 2, "batch": 3},
    "rounds": 2,
    "workers": {"device": "cpu", "precision": "fp32", "slots": 1},
    "tracking": {"mlflow": False, "prefect": "off"},
}


def write_texts() -> None:
    """Forty texts of 2 to 9 words of 20."""
    rng = np.random.default_rng(0)
    texts = rng.integers(2, 20, (40, 9)).astype(np.int32)
    for text, length in zip(texts, rng.integers(2, 10, 40), strict=True):
        text[length:] = 0
    y = np.arange(40, dtype=np.int64) % 2
    arrays = {"train_x": texts[:32], "train_y": y[:32], "test_x": texts[32:], "test_y": y[32:]}
    extra = {"vocabulary": [str(i) for i in range(20)]}
    manifest = Manifest("words", "text", (9,), 2, 32, 8, "planted", "none", extra=extra)
    write_prepared(store_folder(places.store(), "words"), manifest, arrays)


def test_lengths_that_are_told_change_no_number(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts()
    told = straight(make_settings(SETTINGS))
    monkeypatch.setattr(supervised, "lengths_of_batches", lambda x, batches: [None] * len(batches))
    asked = straight(make_settings(SETTINGS))
    assert numbers(told) == numbers(asked)
