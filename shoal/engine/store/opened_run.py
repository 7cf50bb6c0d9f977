"""A run opened for computation: settings, data, partition and method; each process opens it once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from shoal.core.streams import SERVER, Streams
from shoal.data.sets.prepared import Prepared
from shoal.data.views.view import DeviceData, Samples, all_samples, client_samples
from shoal.engine.settings.sections import WorkersSection
from shoal.engine.store.codec import load_message, load_tensors
from shoal.engine.store.memory_index import MemoryIndex
from shoal.engine.store.round_paths import sender_of
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.verified import open_verified
from shoal.methods.contract.base import Client, Clients, Evaluation
from shoal.methods.contract.message import Tensors


class OpenedRun(RunFacts):
    """A run with everything that training and evaluation need.

    Args:
        run: the run's folder.
        device: device of this process, such as cpu or cuda:1.
        working: whether this process is a worker, which may capture steps as CUDA graphs; elsewhere that costs more
            than it saves.
    """

    def __init__(self, run: RunFolder, device: str = "cpu", *, working: bool = False) -> None:
        self.graphs = graphs_of(run.settings().workers, device, working=working)
        super().__init__(run, device)
        self.prepared: Prepared = open_verified(run.folder_of("data"), by_client=True)

    @cached_property
    def data(self) -> DeviceData:
        """The data set on this process's device."""
        return DeviceData(self.prepared, self.device)

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
            evaluate.batch,
            evaluate.recalibrate,
            evaluate.probe_epochs,
            evaluate.finetune,
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


def graphs_of(workers: WorkersSection, device: str, *, working: bool) -> str:
    """Return how a process captures steps as CUDA graphs: off, on, or (on GPUs only) auto."""
    no_gpu = workers.graphs == "auto" and not device.startswith("cuda")
    if not working or no_gpu:
        return "off"
    return workers.graphs
