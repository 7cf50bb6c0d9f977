"""What a run would do: its clients, its bytes and its time, from two updates of one client."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from shoal.core.errors import ShoalError
from shoal.core.streams import Streams
from shoal.data.partition.table import Partition
from shoal.data.views.view import DeviceData, client_samples
from shoal.engine.settings import places
from shoal.engine.settings.hardware import device_here, expected_slots
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.settings.run_settings import Settings, resolve
from shoal.engine.store.lineage import encoder_of_run
from shoal.engine.store.run_facts import context_of
from shoal.engine.workers.arithmetic import arithmetic
from shoal.lifecycle.preflight import check_method
from shoal.lifecycle.starting import Basis, basis_of
from shoal.methods.contract.base import Client, Federation, Method, Server, Update
from shoal.methods.contract.message import Message
from shoal.methods.registry import METHODS
from shoal.review.results.result import WAYS


@dataclass(frozen=True)
class Cost:
    """The cost of a round for one client.

    Args:
        samples: training samples of the client.
        seconds: of its work.
        up, down, d2d: bytes that it sent to the server, got from it, and sent to other clients.
    """

    samples: int
    seconds: float
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
        measured: the cost of a round for one client; None where it could not be measured.
        why: why it could not be measured; else empty.
        seconds: of the clients' work in all rounds, estimated from that.
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
    measured: Cost | None
    why: str
    seconds: float | None
    bytes: dict[str, int] | None
    choice: tuple[int, int] | None = None
    left_out: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return asdict(self)


def rehearse(settings: Settings, partition: Path | None = None) -> Plan:
    """Prepare data and partition, do two updates of one client in this process, and estimate the run from them.

    The data set and the partition are kept for the run itself.

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
    basis = basis_of(settings, partition)
    settings = basis.settings
    device = basis.resolved.device
    slots = expected_slots(settings.workers, device)
    rounds = settings.rounds
    table = basis.table
    if METHODS[settings.method.name].pooled:
        table = table.pooled()
    sizes = table.counts().tolist()
    federation = Federation(basis.prepared.spec, tuple(sizes), Streams(settings.seed), table.truth)
    method = method_of(basis)
    with one_thread(), arithmetic(basis.resolved.precision):
        start = method.init_server(federation)
        drawn = method.sample_clients(start, federation)[: settings.participation.buffer]
        middle = sorted(drawn, key=sizes.__getitem__)[len(drawn) // 2]
        cost, why = measure(method, start, basis, table, middle)
    if why and choice is not None:
        why = f"one client alone cannot try {choice[1]} clusters, the most that the run tries together ({why})"
    seconds = None
    sent = None
    if cost is not None:
        samples = sum(sizes[number] for number in drawn)
        seconds = rounds * cost.seconds / max(1, cost.samples) * samples / min(slots, len(drawn))
        sent = {way: getattr(cost, way) * len(drawn) * rounds for way in WAYS}
    return Plan(
        method=settings.method.name,
        data=settings.data.name,
        clients=len(sizes),
        a_round=len(drawn),
        rounds=rounds,
        samples=(min(sizes), int(statistics.median(sizes)), max(sizes)),
        slots=slots,
        device=str(device),
        measured=cost,
        why=why,
        seconds=seconds,
        bytes=sent,
        choice=choice,
        left_out=table.settings.get("left_out", {}).get("reason", ""),
    )


def method_of(basis: Basis) -> Method:
    """Return the method of a run that has no folder yet."""
    settings = basis.settings
    encoder = encoder_of_run(settings, basis.prepared)
    context = context_of(
        settings,
        basis.prepared.spec,
        torch.device(device_here(basis.resolved.device)),
        basis.resolved.precision,
        "off",
        "" if encoder is None else encoder.sha256,
    )
    return METHODS[settings.method.name](settings.method, context)


def measure(method: Method, server: Server, basis: Basis, table: Partition, number: int) -> tuple[Cost | None, str]:
    """Return the cost of a round for one client, or why it cannot be measured; see `cost_of_a_round`."""
    try:
        return cost_of_a_round(method, server, basis, table, number), ""
    except ShoalError as error:
        return None, str(error)


def cost_of_a_round(method: Method, server: Server, basis: Basis, table: Partition, number: int) -> Cost:
    """Return the cost of the second round for a client that takes part alone: the first also warms up.

    Args:
        method: of the run.
        server: the state before round 1.
        basis, table: of the run, and the partition that its method sees.
        number: of the client.

    Raises:
        ShoalError: the client cannot do its work alone.
    """
    data = DeviceData(basis.prepared, method.context.device)
    client = Client(
        number,
        client_samples(data, table, number),
        client_samples(data, table, number, validation=True),
        {},
        (),
        Streams(basis.settings.seed, 1, number),
    )
    down, update, seconds = timed_update(method, server, client)
    following = method.aggregate(server, [replace(update, client=number)])
    if not following.finished and following.round < basis.settings.rounds:
        memory = client.memory if update.memory is None else update.memory
        client = replace(client, memory=memory, streams=Streams(basis.settings.seed, 2, number))
        down, update, seconds = timed_update(method, following, client)
    sample_bytes = basis.prepared.spec.sample_bytes
    return Cost(
        samples=len(client.train),
        seconds=seconds,
        up=update.message.size(sample_bytes),
        down=down.size(sample_bytes),
        d2d=sum(message.size(sample_bytes) for message in update.peers.values()),
    )


def timed_update(method: Method, server: Server, client: Client) -> tuple[Message, Update, float]:
    """Return the server's message to a client, the client's update, and the seconds that the update took."""
    down = method.broadcast(server, client.id)
    began = time.perf_counter()
    update = method.client_update(down, client)
    return down, update, time.perf_counter() - began
