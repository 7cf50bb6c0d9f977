"""Every method on small settings gives the numbers that were recorded once: weights to the bit, metrics to 8 digits.

Scores of equal weights may differ in their last digits between processors, since libraries choose other kernels there.
The recording names the arithmetic that it was made with (torch's version and the digest of a reference computation).
On a machine with other arithmetic the same runs must agree with it closely, since their bits cannot.
To record again, after an intended change of numbers: python -m tests.engine.test_recorded_bits, with the names of
cases to record only these. Where that is done with other arithmetic than that of the recording, the case names its own.
A case may also name what it gives `elsewhere`: on a processor whose other bits the reference computation does not show.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.data.sets.prepare import store_folder
from shoal.data.sets.prepared import Manifest, write_prepared
from shoal.engine.settings import places
from shoal.engine.workers.worker_processes import WorkerProcesses
from tests.conftest import SMALL
from tests.planted_groups import write_swapped
from tests.runs import straight

COUNTS = ("round", "clients", "bytes_up", "bytes_down", "bytes_d2d")
RECORDING = Path(__file__).with_name("recorded_bits.json")
GROUPED: dict[str, Any] = {
    "data": {"name": "swapped", "limit": None},
    "partition": {"kind": "by_column", "validation": 0.3},
}
POINTS = {"name": "gaussian", "limit": None, "options": {"samples": 60, "clusters": 3}}
PLANES = {"name": "subspace", "limit": None, "options": {"samples": 60, "clusters": 3}}
MAJORITY = {"kind": "majority", "p": 0.5, "clients": 3}
COLOUR = {"name": "colour", "limit": None}
EXCHANGE = {"name": "cfcl", "steps": 6, "tau_a": 3, "tau_p": 2, "reserve": 5, "budget": 4}
TWO_LABELS = {"kind": "labels_per_client", "labels": 2, "clients": 5}
FLOWS = {"name": "uifca", "cluster_rounds": 2, "comm_rounds": 2, "steps": 3}
CASES: dict[str, dict[str, Any]] = {
    "fedpnp": {"method": {"name": "fedpnp"}, "rounds": 3},
    "fedpnp, part of the clients": {
        "method": {"name": "fedpnp", "mu": 0.9},
        "partition": {"kind": "dirichlet", "clients": 5, "beta": 0.5},
        "participation": {"fraction": 0.6},
    },
    "fedpnp, colour": {"method": {"name": "fedpnp"}, "data": COLOUR, "augment": {"recipe": "contrastive"}},
    "fedcc": {"method": {"name": "fedcc"}},
    "fedbyolcc": {"method": {"name": "fedbyolcc"}},
    "single": {"method": {"name": "single"}},
    "ncc": {"method": {"name": "ncc"}},
    "kmeans": {"method": {"name": "kmeans"}, "rounds": 1},
    "cfcl": {"method": EXCHANGE, "partition": TWO_LABELS, "model": {"encoder": "pooled-conv"}, "rounds": 50},
    "cfcl, uniform": {"method": {**EXCHANGE, "selection": "uniform"}, "rounds": 50},
    "ssd": {"method": {"name": "ssd"}, "participation": {"fraction": 0.7}},
    "ssd, colour": {
        "method": {"name": "ssd"},
        "data": COLOUR,
        "augment": {"recipe": "strong"},
    },
    "fedsimclr": {"method": {"name": "fedsimclr"}},
    "fedsimclr, batched": {"method": {"name": "fedsimclr"}, "workers": {"batched": 2}},
    "fedbyol": {"method": {"name": "fedbyol"}},
    "fedema": {"method": {"name": "fedema"}},
    "cfl": {
        "method": {"name": "cfl", "criterion": "schedule", "schedule": [2], "gamma_max": 0.0},
        **GROUPED,
        "rounds": 4,
    },
    "cfl, absolute, permuted": {
        "method": {"name": "cfl", "criterion": "absolute", "eps1": 1e9, "eps2": 0.0, "permute": True, "gamma_max": 0.0},
        **GROUPED,
        "rounds": 4,
    },
    "fedavg": {"method": {"name": "fedavg"}, **GROUPED},
    "fedavg, batched": {"method": {"name": "fedavg"}, **GROUPED, "workers": {"batched": 3}},
    "ifca": {"method": {"name": "ifca", "models": 2}, **GROUPED},
    "local_only": {"method": {"name": "local_only"}, **GROUPED},
    "uifca": {"method": FLOWS, "data": POINTS, "partition": MAJORITY, "rounds": 4},
    "uifca, from k-FED": {
        "method": {**FLOWS, "init": "kfed", "warm_start": True},
        "data": POINTS,
        "partition": MAJORITY,
        "rounds": 5,
    },
    "uifca, images": {
        "method": {**FLOWS, "width": 4, "blocks": 1, "cluster_rounds": 4, "background": True},
        "partition": {"kind": "majority", "p": 0.5, "clients": 3},
        "data": {"name": "digits", "limit": 90},
        "rounds": 8,
    },
    "ifca_flows": {
        "method": {"name": "ifca_flows", "steps": 3},
        "data": PLANES,
        "partition": {"kind": "majority", "p": 1.0, "clients": 3},
    },
    "kfed": {"method": {"name": "kfed"}, "data": POINTS, "partition": MAJORITY, "rounds": 2},
    "fedkmeans": {"method": {"name": "fedkmeans", "standardise": True}, "data": POINTS, "rounds": 9},
    "fedgmm": {"method": {"name": "fedgmm"}, "data": POINTS, "rounds": 12},
    "clustergan": {"method": {"name": "clustergan", "steps": 2, "critic_steps": 2, "width": 4}},
}  # fmt: skip
LONG_CASES = ("uifca, images",)
"""Cases that take some twenty seconds; UIFCA on vectors is among the others."""


def case_settings(case: dict[str, Any]) -> Any:
    """The settings of a case: small, with augmentation named, so that defaults of a data set do not matter."""
    from shoal.engine.settings.merge import merge
    from shoal.engine.settings.run_settings import make_settings

    base = merge(SMALL, {"rounds": 2, "augment": {"recipe": "digits"}, "data": {"limit": 160}})
    changed = dict(case)
    for key in ("method", "partition"):
        base = {**base, key: changed.pop(key, base[key])}
    return make_settings(merge(base, changed))


def write_sets() -> None:
    """A small set of colour images with three planted classes, and one of planted groups, in the home folder."""
    write_swapped("swapped", clients=4, limit=160)
    generator = np.random.default_rng(7)
    labels = np.arange(96) % 3
    images = generator.integers(0, 90, (96, 3, 12, 12))
    for image, label in zip(images, labels, strict=True):
        image[label, 3:9, 3:9] += 150
    arrays = {"train_x": images[:72].astype(np.uint8), "train_y": labels[:72].astype(np.int64),
              "test_x": images[72:].astype(np.uint8), "test_y": labels[72:].astype(np.int64)}  # fmt: skip
    manifest = Manifest("colour", "image", (3, 12, 12), 3, 72, 24, source="planted", licence="none")
    write_prepared(store_folder(places.store(), "colour"), manifest, arrays)


def found(case: dict[str, Any], slots: WorkerProcesses | None = None) -> dict[str, Any]:
    """What a case comes to: the digest of the weights, and the metrics of all rounds by column."""
    run = straight(case_settings(case), slots.call if slots else None, slots=slots.count if slots else 1)
    rounds = run.table("rounds")
    kept = [c for c in rounds.columns if not c.startswith("seconds") and c != "finished_at"]
    # Digits as Python writes them: they name the number exactly. A round without evaluation has no metric: null.
    table = {c: [None if np.isnan(float(value)) else float(value) for value in rounds[c]] for c in kept}
    return {"weights_sha256": run.status().weights_sha256, "rounds": table}


def arithmetic() -> str:
    """Names what decides bits: torch's version, and the digest of a computation with the operations that differ."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = torch.randn(8, 3, 12, 12, requires_grad=True)
        weight = torch.randn(16, 3, 3, 3)
        y = torch.nn.functional.conv2d(x, weight, padding=1).flatten(1).tanh()
        loss = torch.logsumexp(y @ torch.randn(y.shape[1], 64), 1).sum() + y.exp().mean()
        loss.backward()
        assert x.grad is not None
        digest = hashlib.sha256(x.grad.numpy().tobytes() + loss.detach().numpy().tobytes())
    return f"{torch.__version__.split('+')[0]} {digest.hexdigest()[:16]}"


@pytest.fixture(scope="module")
def two_slots() -> Iterator[WorkerProcesses]:
    with WorkerProcesses(2) as slots:
        yield slots


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG_CASES)) for name in CASES]
)
def test_the_numbers_are_those_recorded(home: Path, two_slots: WorkerProcesses, name: str) -> None:
    check_recorded(CASES[name], json.loads(RECORDING.read_text()), name, two_slots)


def check_recorded(case: dict[str, Any], recorded: dict[str, Any], name: str, two_slots: WorkerProcesses) -> None:
    """Run a case on one slot and on two, and compare with what was recorded of it."""
    write_sets()
    one, two = found(case), found(case, two_slots)
    assert one == two, "one slot and two"
    expected = recorded["cases"][name]
    if expected.get("arithmetic", recorded["arithmetic"]) == arithmetic():
        known = [expected, *expected.get("elsewhere", [])]  # processors may differ in what `arithmetic` has nothing of
        same = [each for each in known if each["weights_sha256"] == one["weights_sha256"]]
        assert same, f"the weights have other bits: {one['weights_sha256']}"
        assert_same_metrics(one["rounds"], same[0]["rounds"])
        return
    assert one["rounds"].keys() == expected["rounds"].keys()
    for key in COUNTS:
        assert one["rounds"][key] == expected["rounds"][key]


def assert_same_metrics(rounds: dict[str, list[float | None]], expected: dict[str, list[float | None]]) -> None:
    """Counts are equal; scores agree to 8 digits, and those that are 0 but for rounding to 1e-12."""
    assert rounds.keys() == expected.keys()
    for key, values in expected.items():
        assert [value is None for value in rounds[key]] == [value is None for value in values], key
        measured = [(a, b) for a, b in zip(rounds[key], values, strict=True) if a is not None]
        assert all(a == b if key in COUNTS else a == pytest.approx(b, rel=1e-8, abs=1e-12) for a, b in measured), key


def test_what_is_recorded_is_still_there() -> None:
    """A method that is newer than the recording is not in it; one that was recorded may not go."""
    from shoal.methods.registry import BUILT_IN as METHODS

    assert {case["method"]["name"] for case in CASES.values()} <= METHODS.keys()
    assert json.loads(RECORDING.read_text())["cases"].keys() == CASES.keys()


def record(names: Sequence[str] = ()) -> None:
    """Record the cases in `names`; without names, record all cases."""
    import tempfile

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHOAL_HOME"] = folder
        write_sets()
        cases = {name: found(CASES[name]) for name in names or CASES}
    recorded = json.loads(RECORDING.read_text()) if names else {"arithmetic": arithmetic(), "cases": {}}
    own = {} if recorded["arithmetic"] == arithmetic() else {"arithmetic": arithmetic()}
    recorded["cases"] |= {name: own | case for name, case in cases.items()}
    RECORDING.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    record(sys.argv[1:])
