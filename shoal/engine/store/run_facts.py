"""What is known of a run without opening a sample: settings, the properties of the data, sizes of clients, the method.

Whoever leads a run needs no more: it chooses clients, sends messages and aggregates. `OpenedRun` adds the samples.
"""

from __future__ import annotations

from functools import cached_property

import torch

from shoal.core.streams import Streams
from shoal.data.partition.table import Partition, load_partition
from shoal.data.sets.prepared import DataSpec, read_manifest
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.lineage import Lineage
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.methods.contract.base import Federation, Method
from shoal.methods.contract.context import Context
from shoal.methods.registry import METHODS


class RunFacts:
    """A run without its samples.

    Args:
        run: the run's folder.
        device: device of this process, such as cpu or cuda:1.
    """

    graphs = "off"
    """How this process captures steps as CUDA graphs: only workers do."""

    def __init__(self, run: RunFolder, device: str = "cpu") -> None:
        self.run = run
        self.settings: Settings = run.settings()
        self.lineage: Lineage = run.lineage()
        self.device = torch.device(device)
        folder = run.folder_of("data")
        manifest = read_manifest(folder)
        if manifest.digest != self.lineage.data.digest:
            raise RunError(
                f"the prepared data in {folder} is not that with which run {run.name} was started "
                f"(digest {manifest.digest[:12]}, expected {self.lineage.data.digest[:12]}): prepare "
                "that version again, or start a new run"
            )
        self.spec: DataSpec = manifest.spec
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
    def context(self) -> Context:
        """The context that the method gets."""
        settings = self.settings
        return Context(
            self.spec,
            settings.model,
            settings.local,
            settings.augment,
            settings.seed,
            settings.rounds,
            settings.participation.fraction,
            self.device,
            self.precision,
            settings.aggregation,
            self.graphs,
            self.lineage.encoder_sha256,
            settings.privacy.sums != "plain",
            settings.privacy.clip,
        )

    @cached_property
    def sites(self) -> dict[int, str]:
        """The site of each client; empty where the samples lie here."""
        return {client: name for name, site in self.lineage.sites.items() for client in site.clients}

    @cached_property
    def federation(self) -> Federation:
        """The facts about the federation that the server knows before round 1."""
        return Federation(
            self.spec,
            tuple(self.partition.counts().tolist()),
            Streams(self.settings.seed),
            self.partition.truth,
        )
