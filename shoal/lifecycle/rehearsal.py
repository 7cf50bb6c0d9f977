"""An estimate of a run, its bytes and its time, from one client's first two rounds, which are thrown away."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.rounds.client_sampling import ClientSampling
from shoal.engine.rounds.loop import Engine
from shoal.engine.rounds.round_state import RoundState
from shoal.engine.rounds.runner import ThreadRunner
from shoal.engine.settings import places
from shoal.engine.settings.hardware import expected_slots, resolve_machine
from shoal.engine.settings.merge import merge
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.settings.run_settings import Settings, make_settings, resolve
from shoal.engine.store.manifest import RoundRecord
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.preflight import check_method
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.base import Server
from shoal.review.results.result import WAYS


@dataclass(frozen=True)
class Measured:
    """The cost of a round with one client.

    Args:
        samples: training samples of the client.
        seconds: of its work.
        aggregate, evaluate: seconds of the server's work with its answer, and of the evaluation.
        up, down, d2d: bytes that it sent to the server, got from it, and sent to other clients.
    """

    samples: int
    seconds: float
    aggregate: float
    evaluate: float
    up: int
    down: int
    d2d: int


@dataclass(frozen=True)
class Plan:
    """An estimate of a run.

    Args:
        method, data: of the settings.
        clients: how many there are.
        a_round: how many of them take part in a round.
        rounds: the largest number of rounds.
        samples: training samples of the smallest, the median and the largest client.
        slots: how many clients work at once.
        device: on which they work.
        measured: the cost of a round with one client; None where it could not be measured.
        why: why it could not be measured; else empty.
        seconds: of all rounds, estimated from that; without the last evaluation, which may take longer than others.
        bytes: of all rounds, estimated too: up, down and d2d.
        choice: smallest and largest number of clusters among which one is chosen before the run, which takes time and
            bytes of its own; the run is counted with the largest.
        left_out: clients of the data set that would not take part, and why; empty where all would.
    """

    method: str
    data: str
    clients: int
    a_round: int
    rounds: int
    samples: tuple[int, int, int]
    slots: int
    device: str
    measured: Measured | None
    why: str
    seconds: float | None
    bytes: dict[str, int] | None
    choice: tuple[int, int] | None = None
    left_out: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return asdict(self)


class RehearsalDone(Exception):
    """The rehearsal has measured what it needs."""


class MedianClientSampling(ClientSampling):
    """Sampling that takes only the client with the median number of samples among those that would be drawn."""

    def sample(self, server: Server, without: Iterable[int] = ()) -> list[int]:
        """Return that client alone."""
        sizes = self.facts.federation.sizes
        drawn = sorted(super().sample(server, without), key=sizes.__getitem__)
        middle = len(drawn) // 2
        return drawn[middle : middle + 1]


class OneClient(Engine):
    """A run of two rounds in which one client works."""

    writes_ledger = False
    sampling_type = MedianClientSampling

    def checkpoint(self, before: RoundState, after: RoundState, record: RoundRecord) -> None:
        """End after the second round: the first also warms up."""
        super().checkpoint(before, after, record)
        if after.round == 2:
            raise RehearsalDone


def rehearse(settings: Settings, partition: Path | None = None) -> Plan:
    """Prepare data and partition, do one client's first two rounds in this process, and estimate the run from them.

    Nothing of the run stays; the data set and the partition are kept for the run itself.

    Args:
        settings: of the run.
        partition: a stored partition to use.

    Raises:
        ShoalError: as `new_run`.
    """
    choice = None
    if settings.chooses_clusters:
        check_method(settings, places.store())
        choice = (settings.choose.min_clusters, settings.choose.max_clusters)
        settings = resolve(settings, clusters=settings.choose.max_clusters)
    with tempfile.TemporaryDirectory(prefix="shoal-dry-run-") as folder:
        # One client trains, so that no round is asynchronous.
        tried = {"evaluate": {"every": 1}, "participation": {"buffer": None}}
        run = new_run(make_settings(merge(settings.to_json(), tried)), partition, Path(folder))
        reduced = run.settings()
        facts = RunFacts(run)
        sizes = list(facts.federation.sizes)
        rounds = reduced.rounds
        device = resolve_machine(reduced).device
        slots = expected_slots(reduced.workers, device)
        start = facts.method.init_server(facts.federation)
        drawn = facts.method.sample_clients(start, facts.federation)[: settings.participation.buffer]
        judged = math.ceil(rounds / settings.evaluate.every)
        measured, why = measure(run)
    if why and choice is not None:
        why = f"one client alone cannot try {choice[1]} clusters, the most that the run tries together ({why})"
    seconds = None
    sent = None
    if measured is not None:
        rate = measured.seconds / max(1, measured.samples)
        samples = statistics.mean(sizes[client] for client in drawn) * len(drawn)
        each = rate * samples / min(slots, len(drawn)) + measured.aggregate * len(drawn)
        seconds = rounds * each + judged * measured.evaluate
        sent = {way: getattr(measured, way) * len(drawn) * rounds for way in WAYS}
    spread = (min(sizes), int(statistics.median(sizes)), max(sizes))
    return Plan(
        method=reduced.method.name,
        data=reduced.data.name,
        clients=len(sizes),
        a_round=len(drawn),
        rounds=rounds,
        samples=spread,
        slots=slots,
        device=str(device),
        measured=measured,
        why=why,
        seconds=seconds,
        bytes=sent,
        choice=choice,
        left_out=facts.partition.settings.get("left_out", {}).get("reason", ""),
    )


def measure(run: RunFolder) -> tuple[Measured | None, str]:
    """Measure a round with one client; or return why that is impossible."""
    runner = ThreadRunner(2)
    try:
        with one_thread():
            OneClient(run, Worker().handle, runner).run_to_end()
    except RehearsalDone:
        pass
    except ShoalError as error:
        return None, str(error)
    finally:
        runner.close()
    if not len(run.table("clients")):
        return None, "no client was drawn in the first rounds"
    client = run.table("clients").iloc[-1]
    round = run.table("rounds").iloc[-1]
    measured = Measured(
        samples=int(client["samples"]),
        seconds=float(client["seconds"]),
        aggregate=float(round["seconds_aggregate"]),
        evaluate=float(round["seconds_evaluate"]),
        **{way: int(client[f"bytes_{way}"]) for way in WAYS},
    )
    return measured, ""
