"""Every method on the pretend GPU, by the engine: right, all of it on one device, and no local step waits for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch

from engine.checkpoint import newest_valid
from engine.opened_run import OpenedRun
from engine.run_folder import FINISHED, RunFolder
from methods.base import MethodError
from methods.cfl.cfl import CFL
from methods.cfl.supervised import judge
from methods.registry import METHODS
from methods.scores import probe
from review.clusters import cluster_facts, keep_clusters
from tests.pretend_gpu.cases import CASES, settings_of, write_sets
from tests.pretend_gpu.device import DEVICE, pretending
from tests.pretend_gpu.running import PretendWorker, run_there
from tests.runs import numbers, straight

WAITS_A_STEP = {"cfl, text": 1}
"""Waits of a local step, of the cases that have some: a packed batch of texts needs its lengths on the host."""
FILES = "engine/codec.py:"
"""Reads and writes tensors: a server state is read once by who needs it first, training or evaluation."""
Ran = tuple[RunFolder, PretendWorker]
Run = Callable[..., Ran]


def of_method(name: str) -> str:
    """The method of a case."""
    return name.split(",")[0]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Gives the run of a case, which is made once; the linear probe tries one strength instead of ten."""
    made: dict[tuple[str, bool], Ran] = {}

    def give(name: str, *, twice: bool = False) -> Ran:
        if (name, twice) not in made:
            made[name, twice] = run_there(settings_of(name, twice=twice))
        return made[name, twice]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(probe, "STRENGTHS", (1.0,))
        write_sets()
        yield give


def test_every_method_has_a_case() -> None:
    assert {of_method(name) for name in CASES} == METHODS.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_run_there_gives_the_numbers_of_the_cpu(run_of: Run, name: str) -> None:
    """Draws of the pretend device are those of the CPU: whatever differs was computed otherwise there."""
    run, _ = run_of(name)
    assert run.status()["state"] == FINISHED
    assert not [event["message"] for event in run.events() if "failed" in event["event"]]
    cpu = straight(settings_of(name))
    if "text" in name or "blur" in name:  # other operations, the same up to rounding
        for table in ("rounds", "clients"):
            there, here = (each.table(table).filter(like="loss") for each in (run, cpu))
            assert there.to_numpy().tolist() == pytest.approx(here.to_numpy(), rel=1e-4, nan_ok=True)
    else:
        assert numbers(run) == numbers(cpu)


@pytest.mark.parametrize("name", CASES)
def test_samples_are_assigned_and_predicted_there(run_of: Run, name: str) -> None:
    run, worker = run_of(name)
    kind = METHODS[of_method(name)]
    kept = keep_clusters(run, worker.handle)
    told = [event["message"] for event in run.events() if event["event"] == "clusters_skipped"]
    assert kept != kind.learns_from_labels, told
    if kept:
        assert cluster_facts(run)
    checkpoint = newest_valid(run)
    assert checkpoint is not None
    with pretending():
        opened = OpenedRun(run, DEVICE)
        try:
            predict = opened.method.predictor(worker.server(checkpoint_file(run)))
        except MethodError:
            return
        data = opened.data
        found = predict(data.test_x.float().div(255) if opened.prepared.spec.kind == "image" else data.train_x)
        assert found.embedding.device == torch.device(DEVICE)
        assert torch.isfinite(found.embedding).all()


def checkpoint_file(run: RunFolder):
    from engine.round_paths import RoundPaths

    return RoundPaths(run.path, run.status()["round"]).server
