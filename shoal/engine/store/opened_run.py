"""A run opened for computation: settings, data, partition and method; each process opens it once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import torch

from shoal.core.streams import SERVER, Streams
from shoal.data.partition.table import Partition, load_partition
from shoal.data.sets.prepared import Prepared
from shoal.data.views.view import DeviceData, Samples, all_samples, client_samples
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.codec import load_message, load_tensors
from shoal.engine.store.lineage import Lineage
from shoal.engine.store.memory_index import MemoryIndex
from shoal.engine.store.round_paths import sender_of
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.store.verified import open_verified
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Method
from shoal.methods.contract.context import Context
from shoal.methods.contract.message import Tensors
from shoal.methods.registry import METHODS

EVALUATION_BATCH = 512
"""Samples in a forward pass of an evaluation."""


class OpenedRun:
    """A run with everything that training and evaluation need.

    Args:
        run: the run's folder.
        device: device of this process, such as cpu or cuda:1.
        working: whether this process is a worker, which may capture steps as CUDA graphs; elsewhere that costs more
            than it saves.
    """

    def __init__(self, run: RunFolder, device: str = "cpu", *, working: bool = False) -> None:
        self.run = run
        self.working = working
        self.settings: Settings = run.settings()
        self.lineage: Lineage = run.lineage()
        self.device = torch.device(device)
        self.prepared: Prepared = open_verified(run.folder_of("data"), by_client=True)
        if self.prepared.manifest.digest != self.lineage.data.digest:
            raise RunError(
                f"the prepared data in {self.prepared.folder} is not that with which run {run.name} was started "
                f"(digest {self.prepared.manifest.digest[:12]}, expected {self.lineage.data.digest[:12]}): prepare "
                "that version again, or start a new run"
            )
        whole = load_partition(run.folder_of("partition"))
        if whole.digest != self.lineage.partition.digest:
            raise RunError(f"the partition of run {run.name} has changed since it started: start a new run")
        kind = METHODS[self.settings.method.name]
        self.partition: Partition = whole
        if kind.pooled:
            self.partition = whole.pooled()
        self.method: Method = kind(self.settings.method, self.context)

    @property
    def precision(self) -> str:
        """The precision of the run, which `auto` became when it began."""
        return self.lineage.resolved.precision

    @property
    def graphs(self) -> str:
        """How this process captures steps as CUDA graphs: off, on, or (on GPUs only) auto."""
        workers = self.settings.workers
        no_gpu = workers.graphs == "auto" and self.device.type != "cuda"
        if not self.working or no_gpu:
            return "off"
        return workers.graphs

    @property
    def context(self) -> Context:
        """The context that the method gets."""
        s = self.settings
        return Context(
            self.prepared.spec,
            s.model,
            s.local,
            s.augment,
            s.seed,
            s.rounds,
            s.participation.fraction,
            self.device,
            self.precision,
            s.aggregation,
            self.graphs,
            self.lineage.encoder_sha256,
        )

    @cached_property
    def data(self) -> DeviceData:
        """The data set on this process's device."""
        return DeviceData(self.prepared, self.device)

    @cached_property
    def federation(self) -> Federation:
        """The facts about the federation that the server knows before round 1."""
        return Federation(
            self.prepared.spec,
            tuple(self.partition.counts().tolist()),
            Streams(self.settings.seed),
            self.partition.truth,
        )

    def samples(self, client: int, *, validation: bool = False) -> Samples:
        """Return a client's samples."""
        return client_samples(self.data, self.partition, client, validation=validation)

    def client(
        self,
        client: int,
        round: int,
        memory: str | None,
        inbox: Sequence[str],
        sha256: Mapping[str, str] = MappingProxyType({}),
    ) -> Client:
        """Return a client for its local work in a round.

        Args:
            client: its id.
            round: the round.
            memory: file of its private memory, relative to the run's folder; None: it has none.
            inbox: files of the messages to it from other clients.
            sha256: hex digests of these files, by path.

        Raises:
            StoreError: a file is missing, unreadable, or has another digest.
        """
        tensors: Tensors = {}
        if memory is not None:
            tensors, _ = load_tensors(self.run.path / memory, self.device, sha256.get(memory))
        messages = []
        for path in inbox:
            messages.append((sender_of(path), load_message(self.run.path / path, self.device, sha256.get(path))))
        return Client(
            client,
            self.samples(client),
            self.samples(client, validation=True),
            tensors,
            tuple(messages),
            Streams(self.settings.seed, round, client),
        )

    def evaluation(self, round: int, *, final: bool) -> Evaluation:
        """Return the data and options of an evaluation after a round."""
        streams = Streams(self.settings.seed, round, SERVER)
        evaluate = self.settings.evaluate
        train = all_samples(self.data, self.partition)
        return Evaluation(
            self.data,
            train,
            streams,
            final,
            EVALUATION_BATCH,
            recalibrate=evaluate.recalibrate,
            finetune=evaluate.finetune,
        )


@dataclass(frozen=True)
class OpenedClients(Clients):
    """The clients of a run after a round, each loaded on access."""

    opened: OpenedRun
    round: int
    memory_index: MemoryIndex

    def __len__(self) -> int:
        return self.opened.partition.clients

    def __getitem__(self, client: int) -> Client:
        index = self.memory_index
        return self.opened.client(
            client, self.round, index.memory.get(client), index.inbox.get(client, ()), index.client_digests(client)
        )
