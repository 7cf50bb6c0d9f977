"""Private updates through the engine: what leaves, what is accounted, and where a budget ends a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.engine.messages.wire import TrainAnswer
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.rounds.privacy import Ledger
from shoal.engine.rounds.privacy_ledger import SetLedger
from shoal.engine.settings.run_settings import SettingsError, make_settings
from shoal.engine.store.checkpoint import load_round
from shoal.engine.workers.worker import Worker
from shoal.lifecycle import preflight
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.base import MethodError
from tests.conftest import one_quick
from tests.runs import go_on, stopped, straight

Make = Callable[..., Any]
PRIVATE = {"clip": 0.5, "noise": 0.8}


def test_without_noise_the_mean_of_clipped_differences_is_what_the_server_gets(home: Path, small: Make) -> None:
    reference, clipped = straight(small(rounds=1)), straight(small(rounds=1, privacy={"clip": 0.5}))
    start = load_round(reference, 0).server.tensors
    changes = {
        run: torch.cat([(t - start[n]).flatten() for n, t in load_round(run, 1).server.tensors.items()
                        if t.is_floating_point()]).norm()
        for run in (reference, clipped)
    }  # fmt: skip
    assert changes[clipped] <= 0.5 < changes[reference]
    assert torch.isinf(torch.tensor(clipped.table("rounds")["epsilon_sent"][0])), "nothing is hidden without noise"


@pytest.mark.long
def test_epsilon_is_told_with_every_round_and_survives_a_stop(home: Path, small: Make) -> None:
    settings = small(privacy=PRIVATE, participation={"fraction": 0.67}, rounds=3)
    whole = straight(settings)
    table = whole.table("rounds")
    ledger = Ledger(0.8)
    clients = whole.table("clients")
    for round in (1, 2, 3):
        rows = clients[clients["round"] == round]
        ledger.add(list(rows["client"]), list(rows["samples"]))
        assert table["epsilon_sent"][round - 1] == ledger.spent(1e-5).sent
        assert table["epsilon_mean"][round - 1] == ledger.spent(1e-5).mean

    run = stopped(settings, "round_finished", 2)
    go_on(run)
    for name in ("epsilon_sent", "epsilon_mean"):
        assert list(run.table("rounds")[name]) == list(table[name])


def test_a_budget_ends_the_run_before_it_is_spent(home: Path, small: Make) -> None:
    """The last round that it allows is evaluated as a last one is."""
    ledger = Ledger(0.8)
    for _ in range(2):
        ledger.add([0], [64])
    budget = ledger.spent(1e-5).sent
    run = straight(small(privacy={**PRIVATE, "epsilon": budget}, rounds=5, evaluate={"every": 5}))
    assert list(run.table("rounds")["round"]) == [1, 2]
    assert run.status().state == "finished"
    assert "knn" in run.table("rounds")
    (told,) = [e.message for e in run.events() if e.kind == "budget_spent"]
    assert "privacy.epsilon" in told
    none = straight(small(privacy={**PRIVATE, "epsilon": budget}, rounds=5, seed=1))
    assert not len(none.table("rounds")), "the run before has spent what the data set has"


@pytest.mark.long
@pytest.mark.parametrize("aggregation", [{"rule": "median"}, {"clip": 1.0}])
def test_other_rules_than_the_mean_hide_no_client_behind_the_others(
    home: Path, small: Make, aggregation: dict[str, Any]
) -> None:
    last = straight(small(rounds=2, privacy=PRIVATE, aggregation=aggregation)).table("rounds").iloc[-1]
    assert last["epsilon_mean"] == last["epsilon_sent"]
    reference = straight(small(rounds=2, privacy=PRIVATE, seed=1)).table("rounds").iloc[-1]
    assert reference["epsilon_mean"] < reference["epsilon_sent"] == last["epsilon_sent"]


def test_too_few_answers_spend_nothing_beyond_the_budget(home: Path, small: Make) -> None:
    """Where fewer clients answer, less noise hides each of them in the mean."""
    ledger = Ledger(2.0)
    ledger.add([0, 1, 2], [80, 80, 80])
    privacy = {"clip": 0.5, "noise": 2.0, "epsilon": ledger.spent(1e-5).mean * 1.01, "budget": "mean"}
    run = new_run(small(privacy=privacy, rounds=1, participation={"retries": 0}))
    worker = Worker()

    def loses(request: Any) -> Any:
        answer = worker.handle(request)
        if isinstance(answer, TrainAnswer):
            answer.clients.pop(1, None)
        return answer

    with pytest.raises(RoundFailed, match=r"more than privacy\.epsilon"):
        go_on(run, loses)
    go_on(run)
    assert len(run.table("clients")) == 3


def test_settings_that_do_not_go_together_are_refused(home: Path, small: Make) -> None:
    for wrong, said in (({"noise": 1.0}, "set privacy.clip"), ({"clip": 1.0, "epsilon": 2.0}, "needs noise")):
        with pytest.raises(SettingsError, match=said):
            make_settings({"privacy": wrong})
    for method in ("cfcl", "single", "fedsimclr_kmeans"):
        with pytest.raises(MethodError, match=r"privacy\.clip is for methods"):
            new_run(small(privacy=PRIVATE, method={"name": method}))


POINTS = {"name": "gaussian", "limit": None, "options": {"samples": 60, "clusters": 3}}


@pytest.mark.parametrize("sums", one_quick(["plain", "masked"]))
@pytest.mark.parametrize(
    ("method", "rounds"),
    [({"name": "fedkmeans"}, 7), ({"name": "fedgmm"}, 12), ({"name": "fedkmeans", "landmarks": 12}, 8)],
)
def test_every_round_of_a_clustering_is_in_the_ledger(
    home: Path, small: Make, method: dict[str, Any], rounds: int, sums: str
) -> None:
    privacy = {"clip": 1.0, "noise": 0.1, "unit": "row", "sums": sums}
    settings = small(
        method=method,
        data=POINTS,
        rounds=20,
        privacy=privacy,
        partition={"kind": "iid", "clients": 3},
        participation={},
    )
    run = straight(settings)
    assert run.status().round == rounds
    (entry,) = SetLedger.from_settings(settings.data).runs().values()
    assert entry.asked == dict.fromkeys(range(3), rounds)
    # The noise of three clients hides a row of one, whatever the sizes.
    assert entry.rho_mean == pytest.approx(entry.rho_sent / 3)
    assert run.table("rounds")["epsilon_sent"].iloc[-1] == pytest.approx(entry.spent(1e-5).sent)


@pytest.mark.parametrize(
    ("method", "changes", "said"),
    [
        ({"name": "fedcc"}, {"privacy": {"clip": 1.0, "unit": "row"}}, "unit=row is for fedkmeans"),
        ({"name": "fedkmeans", "sites": "centre"}, {"privacy": {"clip": 1.0}}, "sites=centre"),
        ({"name": "fedkmeans"}, {"privacy": {"clip": 1.0}, "aggregation": {"rule": "median"}}, "aggregation.rule=mean"),
        ({"name": "kfed"}, {"privacy": {"clip": 1.0}}, "fedkmeans, fedgmm"),
        ({"name": "fedsimclr_kmeans"}, {"privacy": {"clip": 1.0}}, "fedkmeans, fedgmm"),
    ],
)
def test_what_noise_does_not_cover_is_refused(
    home: Path, small: Make, method: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(MethodError, match=said):
        new_run(small(method=method, **changes))


def test_without_its_accountant_nothing_private_is_begun(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    with pytest.raises(MethodError, match="needs the package opacus"):
        new_run(small(privacy=PRIVATE))
    new_run(small())


def test_digests_of_runs_without_privacy_stay(small: Make) -> None:
    assert "privacy" in json.dumps(small().to_json())
    assert small().digest() == small(privacy={"delta": 1e-5}).digest() != small(privacy=PRIVATE).digest()
