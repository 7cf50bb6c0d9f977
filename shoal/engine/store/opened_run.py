"""A run opened for computation: settings, data, partition and method; each process opens it once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from shoal.core.streams import SERVER, Streams
from shoal.data.partition.table import Partition
from shoal.data.sets.by_client import is_by_client
from shoal.data.sets.elsewhere import clients_of_site, has_clients_of
from shoal.data.sets.prepared import Manifest, PreparedSet, check_bytes, check_file, open_prepared
from shoal.data.views.view import DeviceData, Samples, all_samples, client_samples
from shoal.engine.store.codec import load_message, load_tensors
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.round_paths import sender_of
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.contract.base import Client, Clients, Evaluation
from shoal.methods.contract.message import Tensors

EVALUATION_BATCH = 512
"""Samples in a forward pass of an evaluation."""


def open_compared(folder: Path) -> PreparedSet:
    """Open a prepared set after comparing its files with its manifest; those of a client when they are first opened.

    Raises:
        DataError: files are missing, or differ from the manifest.
    """

    def check(manifest: Manifest, path: Path) -> None:
        check_file(folder, manifest, path.relative_to(folder).as_posix())

    prepared = open_prepared(folder, check=check)
    if not is_by_client(prepared.manifest.files):
        check_bytes(prepared)
    return prepared


class OpenedRun(RunFacts):
    """A run with everything that training and evaluation need.

    Args:
        run: the run's folder.
        device: device of this process, such as cpu or cuda:1.
        working: whether this process is a worker, which may capture steps as CUDA graphs; elsewhere that costs more
            than it saves.
    """

    def __init__(self, run: RunFolder, device: str = "cpu", *, working: bool = False) -> None:
        if working:
            graphs = run.settings().workers.graphs
            no_gpu = graphs == "auto" and not device.startswith("cuda")
            self.graphs = "off" if no_gpu else graphs
        super().__init__(run, device)
        self.prepared: PreparedSet = open_compared(run.folder_of("data"))

    @cached_property
    def data(self) -> DeviceData:
        """The data set on this process's device."""
        return DeviceData(self.prepared, self.device)

    @cached_property
    def here(self) -> tuple[int, ...]:
        """The clients whose samples are here: all, unless the samples lie at sites."""
        manifest = self.prepared.manifest
        if not self.sites:
            return tuple(range(self.partition.clients))
        site = next((name for name in self.lineage.sites if has_clients_of(manifest, name)), "")
        return tuple(client for client, name in self.sites.items() if name == site)

    @cached_property
    def judged_here(self) -> tuple[DeviceData, Partition]:
        """The data and the partition of the samples that are judged here: at a site its own."""
        if not self.sites:
            return self.data, self.partition
        rows = np.isin(self.partition.client, self.here)
        table = self.partition
        own = replace(
            table,
            sample=table.sample[rows],
            client=table.client[rows],
            validation=table.validation[rows],
        )
        data = copy(self.data)
        if self.prepared.test_x is not None:
            site = self.sites[self.here[0]]
            owner = self.prepared.owners("test")
            mine = torch.from_numpy(np.flatnonzero(np.isin(owner, clients_of_site(self.prepared.manifest, site))))
            data.test_x = data.test_x[mine]
            data.test_y = None if data.test_y is None else data.test_y[mine]
        return data, own

    def samples(self, client: int, *, validation: bool = False) -> Samples:
        """Return a client's samples."""
        return client_samples(self.data, self.partition, client, validation=validation)

    def client(self, files: ClientFiles, round: int) -> Client:
        """Return a client for its local work in a round.

        Args:
            files: its memory and its messages from other clients.
            round: the round.

        Raises:
            StoreError: a file is missing, unreadable, or has another digest.
        """
        client = files.client
        memory: Tensors = {}
        if files.memory is not None:
            memory, _ = load_tensors(self.run.path / files.memory, self.device, files.sha256.get(files.memory))
        messages = []
        for path in files.inbox:
            messages.append((sender_of(path), load_message(self.run.path / path, self.device, files.sha256.get(path))))
        return Client(
            client,
            self.samples(client),
            self.samples(client, validation=True),
            memory,
            tuple(messages),
            Streams(self.settings.seed, round, client),
        )

    def evaluation(self, round: int, *, final: bool) -> Evaluation:
        """Return the data and options of an evaluation after a round."""
        streams = Streams(self.settings.seed, round, SERVER)
        evaluate = self.settings.evaluate
        data, partition = self.judged_here
        return Evaluation(
            data,
            all_samples(self.data, partition),
            streams,
            final,
            EVALUATION_BATCH,
            recalibrate=evaluate.recalibrate,
        )


class OpenedClients(Clients):
    """The clients of a run after a round, each loaded on access.

    Args:
        opened: the run.
        round: the round.
        files: of each client that has any.
    """

    def __init__(self, opened: OpenedRun, round: int, files: Sequence[ClientFiles] = ()) -> None:
        self._opened = opened
        self._round = round
        self._files = {each.client: each for each in files}

    def __len__(self) -> int:
        return self._opened.partition.clients

    def __contains__(self, client: object) -> bool:
        return client in self._opened.here

    def __getitem__(self, client: int) -> Client:
        return self._opened.client(self._files.get(client, ClientFiles(client)), self._round)
