"""The ledger of a data set: what private runs on it have told adds up, over runs, kills and processes at once."""

from __future__ import annotations

import json
import multiprocessing
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.core.records import record_from_json, record_to_json
from shoal.core.seal import sealed
from shoal.engine.messages.wire import Failure, Train, TrainAnswer
from shoal.engine.rounds import privacy_ledger
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.rounds.privacy import Ledger, epsilon, rho
from shoal.engine.rounds.privacy_ledger import SetLedger, set_name, total
from shoal.engine.settings.run_settings import DataSection
from shoal.engine.store.codec import StoreError
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.starting import new_run
from tests.runs import go_on, stopped, straight

Make = Callable[..., Any]
PRIVATE = {"clip": 0.5, "noise": 0.8}
BASE = {"method": {"name": "fedavg"}, "partition": {"kind": "iid", "clients": 3, "validation": 0.3}}
EACH = rho(0.8)


def of_digits() -> SetLedger:
    return SetLedger.from_settings(DataSection(name="digits"))


def asked(run: RunFolder) -> dict[int, int]:
    return dict(of_digits().runs()[run.name].asked)


def test_runs_on_a_set_add_up(home: Path, small: Make) -> None:
    first = straight(small(**BASE, rounds=2, privacy=PRIVATE)).table("rounds")
    assert list(first["epsilon_set_sent"]) == list(first["epsilon_sent"])
    louder = {"clip": 1.0, "noise": 0.4}
    second = straight(small(**BASE, rounds=1, privacy=louder, data={"limit": 120})).table("rounds").iloc[-1]
    assert second["epsilon_sent"] == epsilon(rho(0.4), 1e-5)
    assert second["epsilon_set_sent"] == epsilon(2 * EACH + rho(0.4), 1e-5)
    assert second["epsilon_set_mean"] < second["epsilon_set_sent"]
    straight(small(**BASE, rounds=1))
    assert len(of_digits().runs()) == 2, "a run without private updates is not in it"
    assert stat.S_IMODE(of_digits().path.stat().st_mode) == 0o600
    assert of_digits().spent(1e-5).sent == second["epsilon_set_sent"]


def test_the_budget_is_of_the_set(home: Path, small: Make) -> None:
    """Of three rounds the second run has one left, and the third none."""
    settings = {**BASE, "privacy": {**PRIVATE, "epsilon": epsilon(3.5 * EACH, 1e-5)}}
    done = [len(straight(small(**settings, rounds=2, seed=seed)).table("rounds")) for seed in range(3)]
    assert done == [2, 1, 0]


def test_a_set_is_one_under_any_option() -> None:
    assert set_name(DataSection(name="digits")) == "digits"
    assert set_name(DataSection(name="gaussian-clusters10", options={"seed": 3})) == "gaussian"
    assert set_name(DataSection(name="clinics")) == "clinics"


def test_over_runs_the_client_that_was_asked_most_counts() -> None:
    """Clients of another run hold other samples, perhaps those of the busiest one here."""
    one, other = Ledger(1.0), Ledger(2.0)
    for _ in range(3):
        one.ask([0])
    other.ask([0, 1])
    other.ask([1])
    assert total([one, other], 1e-5).sent == epsilon(3 * rho(1.0) + 2 * rho(2.0), 1e-5)


@pytest.mark.parametrize("event", ["round_started", "client_finished", "round_finished"])
def test_a_run_that_is_stopped_is_counted_once(home: Path, small: Make, event: str) -> None:
    """What is finished is not asked for again; nothing that was asked for is forgotten."""
    run = stopped(small(**BASE, rounds=2, privacy=PRIVATE), event, 1)
    before = asked(run) if event != "round_started" else {}
    go_on(run)
    after = Counter(asked(run))
    assert all(after[client] >= 2 for client in range(3))
    if event != "client_finished":  # where some clients were at work meanwhile, they may have told something
        assert after == {0: 2, 1: 2, 2: 2}
    assert all(after[client] >= before.get(client, 0) for client in range(3))


def test_a_client_that_works_again_is_counted_again(home: Path, small: Make) -> None:
    run = new_run(small(**BASE, rounds=1, privacy=PRIVATE))
    worker, tries = Worker(), Counter[int]()

    def fails_once(request: Any) -> Any:
        answer = worker.handle(request)
        if isinstance(request, Train) and isinstance(answer, TrainAnswer):
            tries.update(list(answer.clients))
            if 1 in answer.clients and tries[1] == 1:
                answer.clients[1] = Failure("it was not well")
        return answer

    go_on(run, fails_once)
    assert asked(run) == {0: 1, 1: 2, 2: 1}
    assert run.table("rounds")["epsilon_sent"][0] == epsilon(2 * EACH, 1e-5)


def test_it_is_on_the_disk_before_a_client_works(home: Path, small: Make) -> None:
    run = new_run(small(**BASE, rounds=1, privacy=PRIVATE))
    worker, requests = Worker(), []

    def handle(request: Any) -> Any:
        requests.append((type(request).__name__, asked(run), len(of_digits().runs()[run.name].states)))
        return worker.handle(request)

    go_on(run, handle)
    assert [each for each in requests if each[0] == "Train"]
    for kind, clients, states in requests:
        assert clients == {0: 1, 1: 1, 2: 1}
        assert states == (0 if kind == "Train" else 1), "a state is entered before it is evaluated"


def test_a_state_is_counted_once() -> None:
    ledger = Ledger(1.0)
    for _ in range(2):
        ledger.ask([0, 1])
        ledger.release("0001-ab", [5, 5])
    assert ledger.rho_mean == pytest.approx(rho(2**0.5))
    ledger.release("0001-cd", [5, 5])
    assert ledger.rho_mean == pytest.approx(2 * rho(2**0.5))


def test_a_ledger_reads_back_what_it_wrote() -> None:
    ledger = Ledger(0.7, averaged=False)
    ledger.add([0, 3], [5, 7])
    assert record_from_json(Ledger, json.loads(json.dumps(record_to_json(ledger)))) == ledger


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"0": 1', '"0": 0'),
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "seal"}),
        lambda text: json.dumps(sealed({"data": "digits", "runs": {"a": {"noise": "much"}}})),
        lambda text: json.dumps(sealed({"data": "mnist", "runs": {}})),
        lambda text: json.dumps(sealed({"data": "digits", "runs": []})),
    ],
)
def test_a_damaged_ledger_is_refused_and_stays(home: Path, small: Make, damage: Callable[[str], str]) -> None:
    path = of_digits().path
    with of_digits().changing() as runs:
        ledger = Ledger(1.0)
        ledger.add([0], [5])
        runs["a"] = ledger
    path.write_text(damaged := damage(path.read_text()))
    with pytest.raises(StoreError, match=rf"the privacy ledger of data set 'digits' is damaged.*{path.name}"):
        straight(small(**BASE, rounds=1, privacy=PRIVATE))
    assert path.read_text() == damaged


def test_a_ledger_that_was_lost_is_asked_for(home: Path, small: Make) -> None:
    run = stopped(small(**BASE, rounds=3, privacy=PRIVATE), "round_finished", 1)
    older = of_digits().path.read_bytes()
    of_digits().path.unlink()
    with pytest.raises(StoreError, match=r"lacks entries of run"):
        go_on(run)
    of_digits().path.write_bytes(older)
    run2 = stopped(small(**BASE, rounds=3, privacy=PRIVATE, seed=1), "round_finished", 2)
    of_digits().path.write_bytes(older)
    for each in (run, run2):
        with pytest.raises(StoreError, match=f"lacks entries of run {run2.name}"):
            go_on(each)


def test_a_new_run_does_not_begin_at_zero_beside_runs_that_know_more(home: Path, small: Make) -> None:
    settings = small(**BASE, rounds=1, privacy=PRIVATE)
    first = straight(settings)
    straight(small(**BASE, rounds=1))
    newest = of_digits().path.read_bytes()
    of_digits().path.unlink()
    for _ in range(2):  # the run that was refused is no witness
        with pytest.raises(StoreError, match=f"lacks entries of run {first.name}: it was removed"):
            straight(small(**BASE, rounds=1, privacy=PRIVATE, seed=1))
        assert not of_digits().path.exists()
    with of_digits().changing() as runs:
        runs[first.name] = Ledger(PRIVATE["noise"])
    with pytest.raises(StoreError, match=f"lacks entries of run {first.name}"):
        straight(small(**BASE, rounds=1, privacy=PRIVATE, seed=1))
    of_digits().path.write_bytes(newest)
    assert straight(small(**BASE, rounds=1, privacy=PRIVATE, seed=1)).is_finished()
    assert len(of_digits().runs()) == 2


def test_a_run_that_was_killed_in_its_first_round_is_missed_too(home: Path, small: Make) -> None:
    run = stopped(small(**BASE, rounds=2, privacy=PRIVATE), "client_finished", 1)
    of_digits().path.unlink()
    with pytest.raises(StoreError, match=f"lacks entries of run {run.name}"):
        straight(small(**BASE, rounds=1, privacy=PRIVATE, seed=1))


def test_too_small_a_budget_for_a_second_try(home: Path, small: Make) -> None:
    """The round fails, and where it is resumed the run ends."""
    settings = small(**BASE, rounds=2, privacy={**PRIVATE, "epsilon": epsilon(1.5 * EACH, 1e-5)})
    run = new_run(settings)
    worker = Worker()

    def fails(request: Any) -> Any:
        answer = worker.handle(request)
        if isinstance(answer, TrainAnswer):
            answer.clients[next(iter(answer.clients))] = Failure("it was not well")
        return answer

    with pytest.raises(Exception, match=r"more than privacy\.epsilon"):
        go_on(run, fails)
    go_on(run)
    assert run.status().state == "finished"
    assert max(asked(run).values()) == 1


def enter(home: str, name: str, times: int) -> None:
    ledger = SetLedger(Path(home) / "privacy" / "digits.json", "digits")
    for _ in range(times):
        with ledger.changing() as runs:
            known = runs[name] if name in runs else Ledger(1.0)
            known.ask([0])
            runs[name] = known


def test_two_processes_at_once_lose_nothing(home: Path) -> None:
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=enter, args=(str(home), name, 40)) for name in ("a", "b", "a")]
    for each in started:
        each.start()
    for each in started:
        each.join()
    assert {name: ledger.asked[0] for name, ledger in of_digits().runs().items()} == {"a": 80, "b": 40}


def test_what_cannot_be_written_is_no_traceback(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / privacy_ledger.FOLDER).write_text("in the way")
    with pytest.raises(StoreError, match="could not be written"):
        straight(small(**BASE, rounds=1, privacy=PRIVATE))


def test_too_few_answers_are_not_told(home: Path, small: Make) -> None:
    """A budget of states: one client's noise alone hides less than three clients' do."""
    ledger = Ledger(2.0)
    ledger.add([0, 1, 2], [80, 80, 80])
    privacy = {"clip": 0.5, "noise": 2.0, "epsilon": ledger.spent(1e-5).mean * 1.01, "budget": "mean"}
    run = new_run(small(rounds=1, privacy=privacy, participation={"retries": 0}))
    worker = Worker()

    def loses(request: Any) -> Any:
        answer = worker.handle(request)
        if isinstance(answer, TrainAnswer):
            answer.clients.pop(1, None)
        return answer

    with pytest.raises(RoundFailed, match=r"a state with the noise of 2 clients would bring epsilon"):
        go_on(run, loses)
    assert not of_digits().runs()[run.name].states
