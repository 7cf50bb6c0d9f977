"""A small run of every method, and of what a method does in another way by its settings.

`TWICE` says how the same run takes twice as many local steps a round, and everything else as often as before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.data.sets.prepare import store_folder
from shoal.data.sets.prepared import Manifest, write_prepared
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import Settings, make_settings

TRAIN, TEST, CLASSES = 32, 12, 3
BASE: dict[str, Any] = {
    "method": {"name": "fedpnp"},
    "data": {"name": "grey", "limit": None},
    "partition": {"kind": "iid", "clients": 2},
    "model": {"encoder": "tiny-conv"},
    "local": {"epochs": 1, "batch": 8},
    "rounds": 2,
    "evaluate": {"every": 5},
    "workers": {"device": "cpu", "precision": "fp32", "slots": 1},
    "tracking": {"mlflow": False, "prefect": "off"},
}
COLOUR = {"name": "colour", "limit": None}
TEXT = {"name": "words", "limit": None}
POINTS = {"name": "gaussian", "limit": None, "options": {"samples": 36, "clusters": 3}}
HELD = {"kind": "iid", "clients": 2, "validation": 0.25}
EXCHANGE = {"name": "cfcl", "steps": 4, "tau_a": 2, "tau_p": 2, "reserve": 3, "budget": 3}
DEVICES = {"model": {"encoder": "pooled-conv"}, "rounds": 20}
FLOWS = {"name": "uifca", "cluster_rounds": 2, "comm_rounds": 1, "steps": 2, "width": 4, "blocks": 1}
CASES: dict[str, dict[str, Any]] = {
    "fedpnp": {},
    "fedpnp, colour": {"data": COLOUR, "augment": {"recipe": "strong"}},
    "fedcc": {"method": {"name": "fedcc"}},
    "fedbyolcc": {"method": {"name": "fedbyolcc"}},
    "single": {"method": {"name": "single"}},
    "ncc": {"method": {"name": "ncc"}},
    "kmeans": {"method": {"name": "kmeans"}, "rounds": 1},
    "cfcl": {"method": EXCHANGE, **DEVICES},
    "cfcl, uniform": {
        "method": {**EXCHANGE, "selection": "uniform"},
        **DEVICES,
    },
    "ssd": {"method": {"name": "ssd"}},
    "ssd, aligned and uniform": {"method": {"name": "ssd", "gamma": 0.0}},
    "fedsimclr": {"method": {"name": "fedsimclr"}, "workers": {"batched": 2}},
    "fedsimclr_kmeans": {"method": {"name": "fedsimclr_kmeans", "kmeans_rounds": 3, "components": 3}, "rounds": 4},
    "fedx": {"method": {"name": "fedx"}},
    "fedu2": {"method": {"name": "fedu2"}},
    "fedbyol": {"method": {"name": "fedbyol"}},
    "fedema": {"method": {"name": "fedema"}, "rounds": 3},
    "cfl": {
        "method": {"name": "cfl", "criterion": "schedule", "schedule": [1], "gamma_max": 0.0},
        "partition": HELD,
    },
    "cfl, permuted": {"method": {"name": "cfl", "permute": True}, "partition": HELD},
    "cfl, text": {"method": {"name": "cfl"}, "partition": HELD, "data": TEXT},
    "fedavg": {"method": {"name": "fedavg"}, "partition": HELD, "workers": {"batched": 2}},
    "fedavg, private": {
        "method": {"name": "fedavg"},
        "partition": HELD,
        "privacy": {"clip": 1.0},
        "rounds": 1,
    },
    "ifca": {"method": {"name": "ifca", "models": 2}, "partition": HELD},
    "local_only": {"method": {"name": "local_only"}, "partition": HELD},
    # Who trains which flow is drawn, and no matter of what was learnt.
    "uifca": {"method": {**FLOWS, "cluster_rounds": 1}, "model": {"clusters": 2}, "rounds": 1},
    "uifca, from k-FED": {"method": {**FLOWS, "init": "kfed"}, "data": POINTS, "rounds": 4},
    "uifca, dense": {
        "method": {**FLOWS, "cluster_rounds": 1, "flow": "dense_cycle", "width": 4},
        "model": {"clusters": 2},
        "rounds": 1,
    },
    "ifca_flows": {"method": {"name": "ifca_flows", "steps": 2}, "data": POINTS},
    "kfed": {"method": {"name": "kfed"}, "data": POINTS},
    "fedkmeans": {"method": {"name": "fedkmeans", "components": 2}, "data": POINTS, "rounds": 7},
    "fedgmm": {"method": {"name": "fedgmm"}, "data": POINTS, "rounds": 8},
    "clustergan": {"method": {"name": "clustergan", "steps": 2, "critic_steps": 2, "width": 4}},
}
FLOW_STEPS = {"method": {"steps": 4}}
TWICE: dict[str, dict[str, Any]] = {
    "cfcl": {"method": {"steps": 8, "tau_a": 4, "tau_p": 4}},
    "uifca": FLOW_STEPS,
    "ifca_flows": FLOW_STEPS,
    "clustergan": FLOW_STEPS,
}
"""By method; of one that is not named batches are half as large."""


def settings_of(name: str, *, twice: bool = False, changed: dict[str, Any] | None = None) -> Settings:
    """The settings of a case; `twice`: with twice as many local steps; `changed`: what is set beside them."""
    own = dict(CASES[name])
    base = BASE | {key: own.pop(key) for key in ("method", "partition") if key in own}
    settings = merge(merge(base, own), changed or {})
    if twice:
        settings = merge(settings, TWICE.get(settings["method"]["name"], {"local": {"batch": 4}}))
    return make_settings(settings)


def write_sets() -> None:
    """The sets of the cases, in the store of the home folder."""
    rng = np.random.default_rng(0)
    total = TRAIN + TEST
    y = np.arange(total, dtype=np.int64) % CLASSES
    words = rng.integers(2, 20, (total, 8)).astype(np.int32)
    words[:, 6:] = 0
    images = {"grey": _images(rng, y, 1), "colour": _images(rng, y, 3)}
    for name, x in {**images, "words": words}.items():
        arrays = {"train_x": x[:TRAIN], "train_y": y[:TRAIN], "test_x": x[TRAIN:], "test_y": y[TRAIN:]}
        kind = "text" if name == "words" else "image"
        extra = {"vocabulary": [str(i) for i in range(20)]} if kind == "text" else {}
        manifest = Manifest(name, kind, x.shape[1:], CLASSES, TRAIN, TEST, "planted", "none", extra=extra)
        write_prepared(store_folder(places.store(), name), manifest, arrays)


def _images(rng: np.random.Generator, y: np.ndarray, channels: int) -> np.ndarray:
    x = rng.integers(0, 90, (len(y), channels, 8, 8))
    for image, label in zip(x, y, strict=True):
        image[:, 2 * label : 2 * label + 3] += 150
    return x.astype(np.uint8)
