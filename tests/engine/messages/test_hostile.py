"""One hostile client: refused and named, nothing of it kept, the run goes on, and the same after a kill as without."""

from __future__ import annotations

import contextlib
import html
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.core.digests import file_digest
from shoal.engine.messages import inspection
from shoal.engine.messages.inspection import Change, MessageRefused, check_answer, check_state, too_large_changes
from shoal.engine.messages.wire import TrainAnswer
from shoal.engine.rounds import client_history
from shoal.engine.rounds.loop import Engine
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.rounds.runner import ThreadRunner
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.checkpoint import load_manifest, load_round
from shoal.engine.store.codec import load_message, save_message
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.store.status import FAILED, FINISHED
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.base import Message, Server, Update
from shoal.review.pages.report import write_report
from tests.hostile import LEAST_ARI, ROBUST, HostileWorker, attack, cases, go_on, settings_of, table
from tests.hostile_updates import SPOILT
from tests.runs import numbers, stopped, stopped_at, straight

Make = Callable[..., Any]
QUICK = {
    "method": {"name": "fedavg"},
    "partition": {"kind": "iid", "clients": 5, "validation": 0.3},
    "participation": {"retries": 0},
}


def events(run: RunFolder, kind: str) -> list[Event]:
    return [event for event in run.events() if event.kind == kind]


def nan(update: Update) -> Update:
    return SPOILT["NaN"](update)


@pytest.mark.parametrize(
    ("case", "update", "side"),
    [
        ("fedavg", "NaN", "server"),
        ("fedavg", "count 0", "worker"),
        ("fedavg", "int8", "server"),
        ("fedpnp", "1e30", "worker"),
        ("cfl", "times 1,000", "worker"),
        ("uifca", "count 1e12", "server"),
        ("kfed", "one dimension more", "server"),
        ("cfcl", "to peers samples that are not there", "worker"),
        ("local_only", "memory NaN", "worker"),
        ("kfed", "centres fewer than its points have", "worker"),
        ("uifca, from k-FED", "centres fewer than its points have", "worker"),
        ("fedavg", "a metric as text", "worker"),
        ("fedavg", "a metric without a name", "worker"),
        ("fedavg", "a thousand metrics", "worker"),
        ("fedavg", "a metric of 401 digits", "worker"),
        ("fedavg", "memory too large", "worker"),
        ("cfcl", "to peers samples of others", "worker"),
        ("fedsimclr_kmeans", "the start that costs nothing", "worker"),
    ],
)
def test_a_hostile_client_ends_no_run(home: Path, case: str, update: str, side: Any) -> None:
    found = attack(cases()[case], SPOILT[update], side)
    assert found.outcome == "refused", found
    assert "client 2 in round" in found.message
    assert not found.others, "honest clients are left alone"


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "update"),
    [
        ("fedkmeans, median", "sums of 50 a row"),
        ("fedkmeans, median", "means drawn aside"),
        ("fedkmeans, landmarks, median", "all samples in every cluster"),
        ("fedkmeans, landmarks, median", "ties of two groups"),
    ],
)
def test_a_hostile_client_moves_no_cluster_of_the_others(home: Path, case: str, update: str) -> None:
    found = attack(cases()[case], SPOILT[update], "worker")
    assert found.ari is not None
    assert found.ari >= LEAST_ARI


def test_a_method_of_one_client_waits_for_it(home: Path, small: Make) -> None:
    settings = small(method={"name": "kmeans"}, rounds=1, participation={"retries": 0})
    run = new_run(settings)
    with pytest.raises(RoundFailed, match=r"0 of 1 clients succeeded.*client 0 in round 1 is refused.*NaN"):
        go_on(run, HostileWorker(0, nan, "server"))
    go_on(run, Worker())
    assert numbers(run) == numbers(straight(settings))


def test_both_sides_look_at_metrics(home: Path, small: Make) -> None:
    run = new_run(small(**QUICK, rounds=1))
    with pytest.raises(MessageRefused, match=r"list of metrics of client 2 in round 1 is refused: fact 'loss'"):
        check_answer(2, 1, Update(Message(), metrics={"loss": "low"}))  # type: ignore[dict-item]

    class Telling(HostileWorker):
        def _written_over(self, request: Any, done: Any) -> Any:
            return replace(done, metrics={"loss": None})

    go_on(run, Telling(2, nan, "server"))
    (told,) = events(run, "client_refused")
    assert "list of metrics of client 2" in told.message


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"metrics": {"loss": 10**400}}, r"list of metrics of client 2.*'loss' is 10*\.\.\., expected a whole number"),
        ({"metrics": {"loss": 2**63}}, r"list of metrics of client 2.*9223372036854775807"),
        ({"metrics": 5}, r"list of metrics of client 2.*expected numbers by name"),
        ({"samples": 10**6}, r"list of counts of client 2.*'samples' is 1000000"),
        ({"bytes_up": -1}, r"list of counts of client 2.*'bytes_up' is -1"),
        ({"peers": {1: 2.5}}, r"list of counts of client 2.*'bytes to client 1' is 2.5"),
        ({"seconds": float("nan")}, r"list of counts of client 2.*'seconds' is nan"),
    ],
)
def test_what_no_table_could_hold_is_refused(home: Path, small: Make, more: dict[str, Any], said: str) -> None:
    """The run goes on without the client, and what is left can be resumed."""
    settings = small(**QUICK, rounds=2)
    run = new_run(settings)

    class Telling(HostileWorker):
        def _written_over(self, request: Any, done: Any) -> Any:
            return replace(done, **more) if request.round == 1 else done

    class Stop(Exception):
        pass

    def stop(entry: Event) -> None:
        if entry.kind == "round_finished":
            raise Stop

    runner = ThreadRunner(2)
    with contextlib.suppress(Stop):
        Engine(run, Telling(2, nan, "server").handle, runner, 1, [stop]).run_to_end()
    runner.close()
    (told,) = events(run, "client_refused")
    assert re.search(said, told.message)
    go_on(run, Worker())
    assert run.status().state == FINISHED
    assert list(run.table("rounds")["clients"]) == [4, 5]


def test_a_memory_that_is_too_large_is_refused(home: Path) -> None:
    found = attack(cases()["fedavg"], SPOILT["memory too large"], "worker")
    assert "it has 4,800.0 MB, expected at most 4,096.0 MB" in found.message


def test_a_worker_writes_nothing_of_odd_metrics(home: Path, small: Make) -> None:
    run = new_run(small(**QUICK, rounds=1))
    written: list[int] = []

    class Seen(HostileWorker):
        def handle(self, request: Any) -> Any:
            answer = super().handle(request)
            if isinstance(answer, TrainAnswer):
                written.extend(c for c, done in answer.clients.items() if isinstance(done, FinishedWork))
            return answer

    go_on(run, Seen(2, SPOILT["a metric as text"], "worker"))
    assert sorted(written) == [0, 1, 3, 4]


@pytest.mark.parametrize("side", ["worker", "server"])
def test_nothing_of_a_refused_answer_is_kept(home: Path, small: Make, side: Any) -> None:
    """Today's answer of a client that is refused is not the one that a resume finds."""
    settings = small(**QUICK, rounds=1)
    whole = straight(settings)
    run = new_run(settings)
    listings: list[list[str]] = []

    class Stop(Exception):
        pass

    class Stopping(HostileWorker):
        def handle(self, request: Any) -> Any:
            if type(request).__name__ == "Evaluate":
                listings.append(sorted(path.name for path in RoundPaths(run.path, 1).work.iterdir()))
                raise Stop
            return super().handle(request)

    with pytest.raises(Stop):
        go_on(run, Stopping(2, nan, side))
    assert run.status().state == FAILED
    assert listings
    assert not [name for name in listings[0] if name.endswith(("-2.json", "-2.safetensors"))]
    # The client is asked again, and is well.
    go_on(run, Worker())
    assert numbers(run) == numbers(whole)


def test_who_is_refused_in_three_rounds_is_not_asked_again(home: Path, small: Make) -> None:
    run = new_run(small(**QUICK, rounds=5))
    go_on(run, HostileWorker(2, nan, "server"))
    rounds = run.table("rounds")
    assert list(rounds["clients"]) == [4] * 5
    assert list(rounds["left_out"]) == [1, 1, 1, 0, 0]
    counts = [load_manifest(run, r).record.refusals for r in range(1, 6)]  # type: ignore[union-attr]
    assert counts == [{"2": 1}, {"2": 2}, {"2": 3}, {"2": 3}, {"2": 3}]
    assert [event.round for event in events(run, "client_refused")] == [1, 2, 3]
    (told,) = events(run, "client_quarantined")
    assert (told.round, told.client) == (3, 2)
    assert "client 2 was refused in 3 rounds" in told.message
    assert run.status().quarantined == (2,)
    write_report(run)
    report = (run.path / "report.html").read_text()
    assert "client 2 was refused in 3 rounds" in report
    (refused, *_) = [event for event in run.events() if event.kind == "client_refused"]
    assert html.escape(refused.message, quote=False)[:40] in report


@pytest.mark.long
def test_quarantine_is_the_same_after_every_interruption(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_history, "MAX_REFUSALS", 2)
    settings = small(**QUICK, rounds=4)
    whole = new_run(settings)
    go_on(whole, HostileWorker(2, nan, "server"))
    count = len(whole.events())
    for stop in range(2, count, 5):
        run = stopped_at(settings, stop, HostileWorker(2, nan, "server").handle)
        go_on(run, HostileWorker(2, nan, "server"))
        assert numbers(run) == numbers(whole), f"stopped at event {stop}"
        assert run.status().quarantined == (2,)


def test_quarantine_does_not_hang_on_old_manifests(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_history, "MAX_REFUSALS", 2)
    settings = small(**QUICK, rounds=4)
    whole = new_run(settings)
    go_on(whole, HostileWorker(2, nan, "server"))
    run = stopped(settings, "round_finished", 3, HostileWorker(2, nan, "server").handle)
    RoundPaths(run.path, 1).manifest.write_text("{}")
    go_on(run, Worker())
    assert run.status().quarantined == (2,)
    assert run.status().weights_sha256 == whole.status().weights_sha256


def test_others_are_drawn_where_refusals_leave_too_few(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client a round: where that one is refused, another is asked, so that it cannot end the run."""
    monkeypatch.setattr(client_history, "MAX_REFUSALS", 1)
    settings = small(**{**QUICK, "participation": {"retries": 0, "fraction": 0.2}}, rounds=4)
    honest = straight(settings)
    drawn = honest.table("clients").sort_values("round")["client"].tolist()
    bad = drawn[0]
    run = new_run(settings)
    go_on(run, HostileWorker(bad, nan, "server"))
    asked = run.table("clients").sort_values("round")["client"].tolist()
    assert len(asked) == 4
    assert bad not in asked
    assert run.table("rounds")["left_out"].tolist() == [1, 0, 0, 0]


def test_refused_messages_are_tried_again_as_other_failures_are(home: Path, small: Make) -> None:
    """A flipped bit on the way is no hostility: the second answer of the round counts."""
    settings = small(**{**QUICK, "participation": {"retries": 1}}, rounds=1)
    run, times = new_run(settings), []

    def first(update: Update) -> Update:
        times.append(1)
        return nan(update) if len(times) == 1 else update

    go_on(run, HostileWorker(2, first, "worker"))
    assert numbers(run) == numbers(straight(settings))
    assert not events(run, "client_refused")


# --- out of proportion ------------------------------------------------------------------------------------------------


def changes(norms: dict[int, float], samples: dict[int, int] | None = None, start: float = 1.0) -> dict[int, Change]:
    return {c: Change(norm, (samples or {}).get(c, 10), lambda: start) for c, norm in norms.items()}


def test_a_change_out_of_all_proportion_is_too_long() -> None:
    found = too_large_changes(changes({0: 1.0, 1: 2.0, 2: 3.0, 3: 500.0}))
    assert list(found) == [3]
    assert "changes the model by 500, and the median of the round is 2.5: expected at most 250" in found[3]
    assert not too_large_changes(changes({0: 1.0, 1: 2.0, 2: 3.0, 3: 249.0}))
    assert not too_large_changes(changes({0: 1.0, 3: 500.0})), "two cannot outvote each other"
    assert not too_large_changes(changes({0: 0.0, 1: 0.0, 3: 500.0})), "nobody else changes anything"


def test_who_has_more_samples_may_change_more() -> None:
    norms = {0: 1.0, 1: 2.0, 2: 3.0, 3: 500.0}
    assert not too_large_changes(changes(norms, {3: 30}))
    assert too_large_changes(changes(norms, {3: 15}))
    assert too_large_changes(changes(norms, {3: 1})), "fewer samples do not lower the bound below the median's"
    assert not too_large_changes(changes({**norms, 3: 240.0}, {3: 1}))


def test_what_is_shorter_than_the_model_is_never_too_long() -> None:
    assert not too_large_changes(changes({0: 1e-6, 1: 1e-6, 2: 1e-6, 3: 0.9}))
    assert too_large_changes(changes({0: 1e-6, 1: 1e-6, 2: 1e-6, 3: 1.1}))


@pytest.mark.parametrize(("ratio", "refused"), [(inspection.MAX_UPDATE_RATIO, 1), (1e7, 0)])
def test_times_a_thousand_is_refused(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch, ratio: float, refused: int
) -> None:
    monkeypatch.setattr(inspection, "MAX_UPDATE_RATIO", ratio)
    run = new_run(small(**QUICK, rounds=1))
    go_on(run, HostileWorker(2, SPOILT["times 1,000"], "worker"))
    assert len(events(run, "client_refused")) == refused


def test_values_beyond_the_bound_are_refused(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(update: Update) -> Update:
        tensors = {"weights": update.message.tensors["weights"] + 50}
        return replace(update, message=replace(update.message, tensors=tensors))

    monkeypatch.setattr(inspection, "MAX_UPDATE_RATIO", 1e9)
    for largest, refused in ((10.0, 1), (1000.0, 0)):
        monkeypatch.setattr(inspection, "MAX_ABS_VALUE", largest)
        run = new_run(small(**QUICK, rounds=1))
        go_on(run, HostileWorker(2, spoil, "worker"))
        told = events(run, "client_refused")
        assert len(told) == refused
        assert all("expected values from -10 to 10" in event.message for event in told)


# --- the state, the settings, the table -------------------------------------------------------------------------------


def test_a_state_that_no_round_could_begin_from_is_refused(home: Path, small: Make) -> None:
    run = straight(small(**QUICK, rounds=1))
    before = load_round(run, 0).server
    from shoal.engine.store.opened_run import OpenedRun

    method, weights = OpenedRun(run).method, before.tensors["weights"]
    check_state(method, before, before.next({"weights": weights + 1}))
    for tensors, words in (
        ({"weights": weights * float("nan")}, "'weights' holds NaN or infinite values"),
        ({"weights": torch.cat((weights[:-1], torch.tensor([float("inf")])))}, "'weights' holds NaN or infinite"),
        ({"weights": weights.to(torch.int8)}, r"'weights' is .*int8.*, expected .*float32"),
        ({"weights": weights[1:]}, "as in the round before"),
        ({"others": weights}, "'others' is .* expected None"),
    ):
        with pytest.raises(RunError, match=words):
            check_state(method, before, before.next(tensors))
    # What the server keeps for itself may be infinite, never NaN.
    check_state(method, before, before.next({"weights": weights}, state={"best_loss": torch.tensor([float("inf")])}))
    with pytest.raises(RunError, match="'best_loss' holds NaN"):
        check_state(
            method, before, before.next({"weights": weights}, state={"best_loss": torch.tensor([float("nan")])})
        )


def test_a_state_that_is_not_finite_stops_the_run_before_its_checkpoint(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.methods.cfl.fedavg import FedAvg

    run = new_run(small(**QUICK, rounds=1))
    honest = FedAvg.aggregate

    def broken(self: FedAvg, server: Server, updates: Any) -> Server:
        after = honest(self, server, updates)
        return replace(after, model={"weights": after.model["weights"] / 0})

    monkeypatch.setattr(FedAvg, "aggregate", broken)
    with pytest.raises(RunError, match="state that method 'fedavg' made in round 1 cannot be kept"):
        go_on(run, Worker())
    monkeypatch.undo()
    go_on(run, Worker())
    assert run.status().state == FINISHED


def test_a_method_that_does_not_say_what_clients_send_does_not_run(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.methods.cfl.fedavg import FedAvg
    from shoal.methods.contract.context import MethodError

    run = new_run(small(**QUICK, rounds=1))
    monkeypatch.setattr(FedAvg, "averages", False)
    monkeypatch.setattr(FedAvg, "averages_parts", True)
    with pytest.raises(MethodError, match="does not say what its clients send: give it a `declared`"):
        go_on(run, Worker())


def test_what_is_allowed_of_clients_counts_in_the_digest() -> None:
    digest = make_settings({}).digest()
    assert make_settings({"participation": {"retries": 1}, "aggregation": {"rule": "mean"}}).digest() == digest
    for changed in (
        {"participation": {"retries": 2}},
        {"aggregation": {"rule": "median"}},
        {"aggregation": {"clip": 1.0}},
    ):
        assert make_settings(changed).digest() != digest


def test_a_robust_rule_is_refused_before_work_where_nothing_is_averaged(home: Path, small: Make) -> None:
    from shoal.core.errors import ShoalError

    with pytest.raises(ShoalError, match=r"aggregation\.rule.*'kmeans' averages none"):
        new_run(small(method={"name": "kmeans"}, aggregation={"rule": "krum"}))


def test_a_robust_rule_reaches_the_run(home: Path, small: Make) -> None:
    settings = {**QUICK, "method": {"name": "fedavg"}, "rounds": 1}
    reference, robust = straight(small(**settings)), straight(small(**settings, aggregation={"rule": "median"}))
    digests = [run.status().weights_sha256 for run in (reference, robust)]
    assert digests[0] != digests[1]


def test_no_thread_of_an_attack_works_with_a_method_that_is_still_honest(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(settings_of(cases()["kfed"]))
    there, let_go, opened = threading.Event(), threading.Event(), Worker.opened

    def slowly(self: Worker, path: Path) -> OpenedRun:
        found = opened(self, path)
        if not there.is_set():
            there.set()
            assert let_go.wait(30)
        return found

    monkeypatch.setattr(Worker, "opened", slowly)
    worker = HostileWorker(2, SPOILT["NaN"], "worker")._worker
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(worker.opened, run.path)
        assert there.wait(30)
        # While the first has opened the run, and not yet made its method hostile.
        second = threads.submit(lambda: "client_update" in vars(worker.opened(run.path).method))
        with contextlib.suppress(TimeoutError):
            second.result(0.2)
        let_go.set()
        assert second.result(30)
        assert "client_update" in vars(first.result(30).method)


def test_every_method_is_attacked_and_the_table_counts() -> None:
    from shoal.methods.registry import BUILT_IN

    assert {case["method"]["name"] for case in cases().values()} == set(BUILT_IN)
    row = {"case": "x", "update": "NaN", "side": "worker", "message": "", "others": (), "ari": None}
    text = table(
        [
            {**row, "outcome": "refused", "pooled": False},
            {**row, "outcome": "ended", "pooled": False, "message": "gone"},
            {**row, "outcome": "ended", "pooled": True},
        ]
    )
    assert "| x | 1 | 0 | 1 | 1 |" in text
    assert "gone" in text


def test_an_empty_message_is_what_some_methods_send(home: Path, small: Make) -> None:
    run = straight(small(**{**QUICK, "method": {"name": "local_only"}}, rounds=1))
    assert run.table("rounds")["left_out"].tolist() == [0]
    assert Message() == Message({}, {}, {})


def test_the_server_looks_at_what_clients_send_each_other(home: Path) -> None:
    run = new_run(settings_of({**cases()["cfcl"], "rounds": 1}))

    class ToPeers(HostileWorker):
        def _written_over(self, request: Any, done: Any) -> Any:
            path = RoundPaths(request.run, request.round).work / done.peer(next(iter(done.peers)))
            message = load_message(path)
            save_message(path, replace(message, samples={name: i + 10**9 for name, i in message.samples.items()}))
            return replace(done, sha256={**done.sha256, path.name: file_digest(path)})

    go_on(run, ToPeers(2, nan, "server"))
    (told,) = events(run, "client_refused")
    assert "message to client" in told.message
    assert "samples outside of the set" in told.message
    assert not [path for path in load_round(run, 1).memory_index.files() if path.endswith("-2.safetensors")]


def test_ties_of_two_groups_are_refused_beside_those_of_others(home: Path, small: Make) -> None:
    method = {"name": "fedkmeans", "landmarks": 60}
    run = new_run(small(method=method, data=ROBUST["data"], model={"encoder": "mlp"}, rounds=4))
    go_on(run, HostileWorker(2, SPOILT["ties of two groups"], "server"))
    (told,) = events(run, "client_refused")
    assert (told.client, "landmarks that lie far apart" in told.message) == (2, True)
    assert sorted(run.table("rounds")["clients"]) == [2, 3, 3, 3]
