"""Tasks: small arguments that survive a trip to another process, work done once, the same files wherever it is done."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from shoal.engine.messages.wire import Evaluated, Trained
from shoal.engine.rounds.units import AggregateRound, EvaluateRound, TrainCohort
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.starting import new_run
from shoal.tasks.prefect.once import SingleExecution, execute_once, take_ticket
from tests.runs import go_on, numbers, straight

ELSEWHERE = """
import pickle, sys
if __name__ == "__main__":
    from shoal.engine.rounds.units import execute
    units = pickle.loads(sys.stdin.buffer.read())
    sys.stdout.buffer.write(pickle.dumps([execute(unit) for unit in units]))
"""


@dataclass(frozen=True)
class Counted:
    """A unit that counts how often it is carried out."""

    run: Path
    name: ClassVar[str] = "counted"
    times: ClassVar[list[int]] = []

    def execute(self) -> int:
        self.times.append(1)
        return len(self.times)


def test_a_unit_is_done_once_by_the_first_caller() -> None:
    Counted.times.clear()
    begun: list[str] = []
    execution = SingleExecution(Counted(Path()), lambda: begun.append("begun"))
    ticket = take_ticket(execution)
    assert execute_once(Counted(Path()), ticket) is None, "the answer is the ticket holder's"
    execution()  # the runner, which had lost sight of the task run
    assert execute_once(Counted(Path()), ticket) is None, "a task run that Prefect begins late"
    assert (execution.outcome.result(), len(Counted.times), begun) == (1, 1, ["begun"])


def test_a_task_of_another_host_does_the_work_itself() -> None:
    Counted.times.clear()
    assert execute_once(Counted(Path()), "another-host-17-1") == 1
    assert execute_once(Counted(Path()), None) == 2


@pytest.mark.long
def test_a_process_that_holds_nothing_of_the_run_does_its_rounds(home: Path, small: Callable[..., Any]) -> None:
    """The units of round 2 in a fresh process that sees the run's folder: what it leaves is taken up, with the bits."""
    settings = small(workers={"slots": 1})
    whole = straight(settings)

    def stop(event: Event) -> None:
        if (event.kind, event.round) == ("round_finished", 1):
            raise KeyboardInterrupt

    run = new_run(settings)
    with pytest.raises(KeyboardInterrupt):
        go_on(run, observers=[stop])
    clients = (0, 1, 2)
    units = [
        TrainCohort(run.path, 2, tuple((client,) for client in clients)),
        AggregateRound(run.path, 2, clients),
        EvaluateRound(run.path, 2, final=False),
    ]
    sent = pickle.dumps(units)
    assert len(sent) < 1000
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=sent, capture_output=True, check=True)
    trained, refused, evaluated = pickle.loads(done.stdout)
    assert isinstance(trained, Trained)
    assert sorted(trained.clients) == list(clients)
    assert refused == {}
    assert isinstance(evaluated, Evaluated)
    wanted = whole.table("rounds").set_index("round").loc[2]
    assert evaluated.metrics == {name: wanted[name] for name in evaluated.metrics}
    assert (RoundPaths(run.path, 2).scratch / "server.safetensors").exists()
    taken = len([e for e in run.events() if e.kind == "client_finished"])
    go_on(RunFolder(run.path))
    assert numbers(run) == numbers(whole)
    later = [e.round for e in run.events() if e.kind == "client_finished"][taken:]
    assert later == [3, 3, 3], "round 2 was trained elsewhere"
