"""Every method on the pretend GPU, by the engine: right, all of it on one device, and no local step waits for it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch

from shoal.engine.store.codec import load_server
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FINISHED
from shoal.methods.cfl.cfl import CFL
from shoal.methods.cfl.state import CFLState
from shoal.methods.cfl.supervised import judge
from shoal.methods.cfl.tree import branch_similarities, nearest_child
from shoal.methods.contract.base import Method
from shoal.methods.registry import BUILT_IN as METHODS
from shoal.methods.scores import probe
from shoal.methods.training.two_views import TwoViewMethod
from shoal.review.results.clusters import keep_clusters
from tests.evaluation import evaluate_state
from tests.pretend_gpu.cases import CASES, settings_of, write_sets
from tests.pretend_gpu.device import DEVICE, pretending
from tests.pretend_gpu.running import PretendWorker, run_there
from tests.runs import numbers, straight

pytestmark = pytest.mark.long

BY_WHO_IS_FIRST = ("shoal/engine/store/codec.py:", " DeviceData.")
"""Reads states and data: once each, for training or for evaluation, whichever needs it first."""
AS_OTHERS = ("fedavg, ", "uifca, from k-FED")
"""Cases whose local steps are those of another; of UIFCA who trains which flow then depends on what was learnt."""
STEPPED = [name for name in CASES if METHODS[name.split(",")[0]].trains and not name.startswith(AS_OTHERS)]
Ran = tuple[RunFolder, PretendWorker]
RunOf = Callable[[str], Ran]


def of_method(name: str) -> str:
    """The method of a case."""
    return name.split(",")[0]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunOf]:
    """Gives the run of a case, which is made once; the linear probe tries one strength instead of ten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(probe, "STRENGTHS", (1.0,))
        write_sets()
        yield functools.cache(lambda name: run_there(settings_of(name)))


def test_every_method_has_a_case() -> None:
    assert {of_method(name) for name in CASES} == METHODS.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "," in name else name for name in CASES]
)
def test_a_run_there_gives_the_numbers_of_the_cpu(run_of: RunOf, name: str) -> None:
    """Draws of the pretend device are those of the CPU: whatever differs was computed otherwise there."""
    run, _ = run_of(name)
    assert run.status().state == FINISHED
    assert not [event.message for event in run.events() if "failed" in event.kind]
    settings = settings_of(name)
    cpu = straight(settings)
    two_views = name == "ncc" or issubclass(METHODS[of_method(name)], TwoViewMethod)
    if "text" in name or settings.workers.batched > 1 or two_views:
        # A device has other operations for LSTMs, stacks, views and losses of two views: the same up to rounding.
        for table in ("rounds", "clients"):
            there, here = (each.table(table).filter(like="loss") for each in (run, cpu))
            assert there.columns.tolist() == here.columns.tolist()
            assert there.to_numpy() == pytest.approx(here.to_numpy(), rel=1e-3, abs=1e-5, nan_ok=True)
    else:
        assert numbers(run) == numbers(cpu)


@pytest.mark.parametrize("name", CASES)
def test_samples_are_assigned_there(run_of: RunOf, name: str) -> None:
    """To clusters, where the method has some; what it predicts with is on the device."""
    run, worker = run_of(name)
    kind = METHODS[of_method(name)]
    if not keep_clusters(run, worker.handle):
        assert kind.learns_from_labels or kind.predictor is Method.predictor, run.events()[-1]
        return
    with pretending():
        opened = OpenedRun(run, DEVICE)
        server = load_server(RoundPaths(run.path, run.status().round).server, worker.device)
        data = opened.data
        x = data.test_x.float().div(255) if opened.prepared.spec.kind == "image" else data.train_x
        found = opened.method.predictor(server)(x)
        assert found.embedding.device == torch.device(DEVICE)
        assert bool(torch.isfinite(found.embedding).all())


@pytest.mark.parametrize("name", STEPPED)
def test_a_local_step_waits_for_nothing(run_of: RunOf, name: str) -> None:
    """With twice as many local steps the host waits no more often."""
    _, once = run_of(name)
    _, twice = run_there(settings_of(name, twice=True), trains_only=True)
    assert twice.training.operations > 1.1 * once.training.operations, "there are more steps"
    more = Counter(twice.training.waits)
    more.subtract(once.training.waits)
    found = {key: n for key, n in more.items() if n and not any(part in key[1] for part in BY_WHO_IS_FIRST)}
    assert not found


def test_a_new_client_finds_its_cluster_there(run_of: RunOf) -> None:
    run, worker = run_of("cfl")
    with pretending():
        opened = OpenedRun(run, DEVICE)
        method = opened.method
        assert isinstance(method, CFL)
        server = load_server(RoundPaths(run.path, run.status().round).server, worker.device)
        client = opened.client(ClientFiles(0), 3)
        update = method.learn(server.tensors["node/0"], client)
        assert update.device == torch.device(DEVICE)
        tree, size = CFLState.from_server(server).tree, CFLState.from_server(server).size
        near = nearest_child(branch_similarities(tree, server.tensors, 0, update, size))
        assert 0 in tree.nodes[near].clients
        assert judge(method.loaded(server.tensors[f"node/{near}"]), client.validation, method.context).number


def test_a_run_that_began_there_is_judged_again_there(run_of: RunOf, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = run_of("fedcc")
    monkeypatch.setattr("tests.evaluation.device_here", lambda began: DEVICE)
    with pretending() as ledger:
        found = evaluate_state(run)
    assert ledger.operations > 100
    last = run.table("rounds").iloc[-1]
    assert found == {name: pytest.approx(last[name]) for name in found}
