"""TensorBoard's and Weights & Biases' logs of a run, with stand-ins of both packages that keep what they are told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from shoal.engine.store.checkpoint import load_manifest
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.further_logs.logs import INCOMPLETE
from shoal.review.mlflow_log.rounds import quality_metrics, round_metrics
from shoal.review.results.result import run_result

Make = Callable[..., Any]


class Writer:
    """TensorBoard's writer: keeps the numbers by name and round."""

    made: ClassVar[list[Writer]] = []
    fails_at = 0

    def __init__(self, log_dir: str, purge_step: int) -> None:
        self.folder = Path(log_dir)
        self.purge_step = purge_step
        self.scalars: dict[tuple[str, int], float] = {}
        self.texts: dict[str, str] = {}
        self.closed = False
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        if step == self.fails_at:
            raise OSError("the disk is full")
        assert (name, step) not in self.scalars, "logged twice"
        self.scalars[name, step] = value

    def add_text(self, name: str, text: str) -> None:
        self.texts[name] = text

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    """The writers that a run opens, in their order."""
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Writer, "made", [])
    monkeypatch.setattr(Writer, "fails_at", 0)
    return Writer.made


def cut_short(settings: Any) -> RunFolder:
    """A run that is interrupted after its second round."""

    def interrupt(event: Event) -> None:
        if event.kind == "round_finished" and event.round == 2:
            raise KeyboardInterrupt

    run = new_run(settings)
    with pytest.raises(KeyboardInterrupt):
        drive(run, observers=[interrupt])
    return run


def numbers(run: RunFolder, *rounds: int) -> dict[tuple[str, int], float]:
    """What a log must have of some rounds, without single clients."""
    return {
        (name, round): value for round in rounds for name, value in round_metrics(load_manifest(run, round)).items()
    }


@pytest.mark.long
def test_tensorboard_gets_every_round_once_also_of_a_resumed_run(
    home: Path, small: Make, writers: list[Writer]
) -> None:
    run = cut_short(small(rounds=3, tracking={"also": ["tensorboard"]}))
    drive(run)
    first, second = writers
    assert first.folder == second.folder == home / "tensorboard" / run.name
    assert second.purge_step == 0, "it replaces what the first one wrote"
    assert {step for _, step in first.scalars} <= {1, 2}
    assert first.closed
    assert second.closed
    found = {key: value for key, value in second.scalars.items() if "client_loss" not in key[0]}
    round, quality = quality_metrics(run)
    assert found == numbers(run, 1, 2, 3) | {(name, round): value for name, value in quality.items()}
    clients = run.table("clients")
    for client in range(3):
        losses = clients.loc[clients["client"] == client, "loss"].tolist()
        assert [second.scalars[f"training/client_loss/{client}", round] for round in (1, 2, 3)] == losses
    assert "    rounds: 3" in first.texts["settings"].splitlines()
    drive(RunFolder(run.path))
    assert len(writers) == 2, "a finished run is not logged again"


@pytest.mark.long
def test_no_log_gets_single_clients_where_that_is_off(home: Path, small: Make, writers: list[Writer]) -> None:
    run = new_run(small(rounds=1, tracking={"also": ["tensorboard"], "clients": False}))
    drive(run)
    assert writers[0].scalars.keys() >= numbers(run, 1).keys()
    assert not [name for name, _ in writers[0].scalars if "client_loss" in name]


@pytest.mark.long
def test_a_log_that_fails_stops_no_run(home: Path, small: Make, writers: list[Writer]) -> None:
    Writer.fails_at = 2
    run = new_run(small(rounds=3, tracking={"also": ["tensorboard"]}))
    assert drive(run).status == "finished"
    told = [event.message for event in run.events() if event.kind == INCOMPLETE]
    assert told == ["tracking.also: tensorboard does not have all of the run (the disk is full)"]
    assert {step for _, step in writers[0].scalars} == {1}


@pytest.mark.long
@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_named(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, {"tensorboard": "torch.utils.tensorboard"}.get(name, name), None)
    run = new_run(small(rounds=1, tracking={"also": [name]}))
    assert drive(run).status == "finished"
    (told,) = [event for event in run.events() if event.kind == INCOMPLETE]
    assert f"pip install {name}" in told.message
    assert told.level == "warning"


class Opened:
    """A run of Weights & Biases: keeps what it is told."""

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.logged: list[dict[str, float]] = []
        self.summary: dict[str, Any] = {}
        self.axes: dict[str, Any] = {}
        self.exit_code: int | None = None

    def define_metric(self, name: str, **more: Any) -> None:
        self.axes[name] = more.get("step_metric")

    def log(self, found: dict[str, float]) -> None:
        self.logged.append(found)
        self.summary |= found

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


@pytest.mark.long
def test_weights_and_biases_goes_on_with_the_run_that_it_has(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Opened] = []
    module = ModuleType("wandb")

    def init(**given: Any) -> Opened:
        opened.append(Opened(**given))
        opened[-1].summary = dict(opened[0].summary)
        return opened[-1]

    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    run = cut_short(small(rounds=3, tracking={"also": ["wandb"], "experiment": "mine"}))
    drive(run)
    first, second = opened
    assert first.given == second.given
    assert first.given["id"] == run.lineage().id
    assert first.given["resume"] == "allow"
    assert first.given["project"] == "mine"
    assert first.given["dir"] == str(home)
    assert first.given["config"]["rounds"] == "3"
    assert first.axes == {"round": None, "*": "round"}
    assert [found["round"] for found in first.logged + second.logged] == [1, 2, 3, 3]
    assert second.logged[-2]["score/acc"] == run.table("rounds")["acc"].iloc[-1]
    assert second.logged[-1].keys() >= quality_metrics(run)[1].keys()
    assert (first.exit_code, second.exit_code) == (1, 0)
    verdict = run_result(run).verdict
    assert verdict is not None
    assert (second.summary["verdict"], second.summary["verdict.reason"]) == (verdict.word, verdict.reason)
