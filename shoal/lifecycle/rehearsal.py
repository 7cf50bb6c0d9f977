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
from shoal.engine.sites.sites_pool import answers_to_plan
from shoal.engine.store.lineage import encoder_of_run
from shoal.engine.store.run_facts import context_of
from shoal.engine.workers.arithmetic import arithmetic
from shoal.lifecycle.preflight import check_method
from shoal.lifecycle.preparing import transport
from shoal.lifecycle.starting import Basis, basis_of
from shoal.methods.contract.base import Client, Federation, Method, Server
from shoal.methods.registry import METHODS


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
        seconds: of the clients' work in all rounds; None where it could not be measured.
        bytes: of all rounds: up, down and d2d; None likewise.
        notes: what else to know: clients that would not take part, a number of clusters that is chosen first, and why
            time and bytes are unknown.
    """

    method: str
    data: str
    clients: int
    a_round: int
    rounds: int
    samples: tuple[int, int, int]
    slots: int
    device: str
    seconds: float | None
    bytes: dict[str, int] | None
    notes: tuple[str, ...]

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
    notes = []
    if settings.chooses_clusters:
        check_method(settings, places.store())
        low = settings.choose.min_clusters
        high = settings.choose.max_clusters
        notes.append(
            f"the number of clusters is chosen among {low} to {high} first, which takes extra time; here {high}"
        )
        settings = resolve(settings, clusters=high)
    basis = basis_of(settings, partition)
    settings = basis.settings
    table = basis.table
    if reason := table.settings.get("left_out", {}).get("reason"):
        notes.append(f"left out: {reason}")
    if METHODS[settings.method.name].pooled:
        table = table.pooled()
    sizes = table.counts().tolist()
    slots = expected_slots(settings.workers, basis.resolved.device)
    federation = Federation(basis.prepared.spec, tuple(sizes), Streams(settings.seed), table.truth)
    method = method_of(basis)
    seconds = None
    sent = None
    with one_thread(), arithmetic(basis.resolved.precision):
        start = method.init_server(federation)
        drawn = method.sample_clients(start, federation)[: settings.participation.buffer]
        middle = sorted(drawn, key=sizes.__getitem__)[len(drawn) // 2]
        try:
            if settings.workers.runner == "sites":
                notes += answers_to_plan(transport(), settings).values()
                raise ShoalError("they are measured where the samples are")
            took, one = second_round(method, start, basis, table, middle)
        except ShoalError as error:
            notes.append(f"time and bytes are unknown: {error}")
        else:
            samples = sum(sizes[number] for number in drawn)
            seconds = settings.rounds * took / max(1, sizes[middle]) * samples / min(slots, len(drawn))
            sent = {way: count * len(drawn) * settings.rounds for way, count in one.items()}
    return Plan(
        method=settings.method.name,
        data=settings.data.name,
        clients=len(sizes),
        a_round=len(drawn),
        rounds=settings.rounds,
        samples=(min(sizes), int(statistics.median(sizes)), max(sizes)),
        slots=slots,
        device=str(basis.resolved.device),
        seconds=seconds,
        bytes=sent,
        notes=tuple(notes),
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


def second_round(
    method: Method, server: Server, basis: Basis, table: Partition, number: int
) -> tuple[float, dict[str, int]]:
    """Return seconds and bytes of the second round of a client that takes part alone: the first also warms up.

    Args:
        method: of the run.
        server: the state before round 1.
        basis, table: of the run, and the partition that its method sees.
        number: of the client.

    Raises:
        ShoalError: the client cannot do its work alone.
    """
    data = DeviceData(basis.prepared, method.context.device)
    train = client_samples(data, table, number)
    validation = client_samples(data, table, number, validation=True)
    client = Client(number, train, validation, {}, (), Streams(basis.settings.seed, 1, number))
    size = basis.prepared.spec.sample_bytes
    while True:
        down = method.broadcast(server, client.id)
        began = time.perf_counter()
        update = method.client_update(down, client)
        seconds = time.perf_counter() - began
        server = method.aggregate(server, [replace(update, client=number)])
        if server.finished or server.round >= min(2, basis.settings.rounds):
            peers = sum(message.size(size) for message in update.peers.values())
            return seconds, {"up": update.message.size(size), "down": down.size(size), "d2d": peers}
        memory = client.memory if update.memory is None else update.memory
        client = replace(client, memory=memory, streams=Streams(basis.settings.seed, 2, number))
