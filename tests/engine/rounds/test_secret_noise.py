"""The noise of a private run cannot be made again from what the run leaves: its folder, MLflow and the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shoal.core.streams import SERVER, Streams
from shoal.engine.messages.wire import Answer, Request, Train
from shoal.engine.store.checkpoint import load_round
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.workers import worker
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.methods.averaging import noise
from shoal.methods.averaging.noise import secret_normal
from shoal.review.pages.report import write_report
from tests.noise import seeded_normal
from tests.runs import go_on, numbers, stopped, straight

Make = Callable[..., Any]
PRIVATE = {"clip": 0.5, "noise": 0.8}
METHOD = {"name": "fedavg"}
HELD_OUT = {"kind": "iid", "clients": 3, "validation": 0.3}


@dataclass
class Spied:
    """What a worker drew, and what it sent with it."""

    bits: list[bytes] = field(default_factory=list)
    sent: list[tuple[int, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """Client, its true change, and its change as it was sent."""


@pytest.fixture
def spied(monkeypatch: pytest.MonkeyPatch) -> Spied:
    found, urandom = Spied(), noise.os.urandom
    outgoing_update = worker.outgoing_update

    def drawn(count: int) -> bytes:
        found.bits.append(urandom(count))
        return found.bits[-1]

    def spy(opened: Any, down: Any, client: Any, update: Any, *more: Any) -> Any:
        left = outgoing_update(opened, down, client, update, *more)
        true, sent = (
            torch.cat([(u.message.tensors[n] - down.tensors[n]).flatten().double() for n in sorted(down.tensors)])
            for u in (update, left)
        )
        found.sent.append((client.id, true, sent))
        return left

    monkeypatch.setattr(noise, "os", SimpleNamespace(urandom=drawn))
    monkeypatch.setattr(worker, "outgoing_update", spy)
    return found


def cosine(left: torch.Tensor, right: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(left, right, 0))


def attacked(found: Spied, seed: int, rounds: int) -> float:
    """The best cosine to the true changes after noise of every stream that follows from a seed is subtracted."""
    best = 0.0
    for client, true, sent in found.sent:
        for round in range(rounds + 1):
            for who in (client, SERVER):
                drawn = seeded_normal(Streams(seed, round, who).torch("privacy"))(sent.shape) * 0.4
                best = max(best, cosine(true, sent - drawn))
    return best


@pytest.mark.long
def test_the_noise_is_not_in_what_a_run_leaves(
    home: Path, small: Make, spied: Spied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same attack takes the noise off every message of a run whose noise is seeded."""
    settings = small(method=METHOD, partition=HELD_OUT, rounds=1, privacy=PRIVATE, tracking={"mlflow": True})
    run = new_run(settings)
    call = Worker().handle
    drive(run, slots=SimpleNamespace(count=1, max_requests=1, call=call))  # type: ignore[arg-type]
    write_report(run)
    assert len(spied.sent) == 3
    assert attacked(spied, settings.seed, 1) < 0.2
    windows = {bits[at : at + 8] for bits in spied.bits for at in range(0, len(bits), 8)}
    assert len(windows) > 10_000, "the bits that were drawn"
    files = [path for path in home.rglob("*") if path.is_file() and path.parts[len(home.parts)] != "data"]
    assert {"report.html", "settings.yaml", "mlflow.db", "digits.json"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        for offset in range(8):
            words = np.frombuffer(content[offset : offset + (len(content) - offset) // 8 * 8], dtype="S8")
            assert windows.isdisjoint(words.tolist()), path

    spied.sent.clear()
    outgoing_update = worker.outgoing_update

    def seeded(opened: Any, down: Any, client: Any, update: Any, *more: Any) -> Any:
        monkeypatch.setattr(worker, "secret_normal", seeded_normal(client.streams.torch("privacy")))
        return outgoing_update(opened, down, client, update, *more)

    monkeypatch.setattr(worker, "outgoing_update", seeded)
    straight(small(method=METHOD, partition=HELD_OUT, rounds=1, privacy=PRIVATE))
    assert attacked(spied, settings.seed, 1) > 0.99, "the attack is one"


def test_two_runs_and_two_tries_have_noise_of_their_own(home: Path, small: Make, spied: Spied) -> None:
    settings = small(method=METHOD, partition=HELD_OUT, rounds=1, privacy=PRIVATE)
    first, second = straight(settings), straight(settings)
    assert numbers(first)[0] != numbers(second)[0]
    by_client = {client: [sent for who, _, sent in spied.sent if who == client] for client in range(3)}
    for one, other in by_client.values():
        assert cosine(one, other) < 0.2
    # A client that is stopped before its answer counts works again, with other noise.
    spied.sent.clear()
    run = stopped(small(method=METHOD, partition=HELD_OUT, rounds=1, privacy=PRIVATE, seed=1), "round_started", 1)
    go_on(run)
    assert len(spied.sent) == 3


def test_the_noise_reaches_the_state(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of noise that is 0 the state is that of clipped updates: so it is the drawn noise that makes the difference."""
    clipped = straight(small(method=METHOD, partition=HELD_OUT, rounds=1, privacy={"clip": 0.5}))
    monkeypatch.setattr(worker, "secret_normal", lambda shape: 0 * secret_normal(shape))
    quiet = straight(small(method=METHOD, partition=HELD_OUT, rounds=1, privacy=PRIVATE))
    states = [load_round(run, 1).server.tensors for run in (clipped, quiet)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_no_answer_to_a_state_that_is_computed_again_is_used(home: Path, small: Make) -> None:
    run = stopped(small(method=METHOD, partition=HELD_OUT, privacy=PRIVATE, rounds=3), "client_finished", 3)
    RoundPaths(run.path, 2).server.write_bytes(b"damaged")
    asked = list[int]()
    worker = Worker()

    def call(request: Request) -> Answer:
        if isinstance(request, Train) and request.round == 3:
            asked.extend(files.client for files in request.clients)
        return worker.handle(request)

    go_on(run, call)
    assert sorted(asked) == [0, 1, 2]
