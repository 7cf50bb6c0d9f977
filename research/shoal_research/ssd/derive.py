"""Derived rows and figures of the self-supervised studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure

from shoal.data.sets.prepare import prepare
from shoal.data.views.view import DeviceData
from shoal.engine.store.checkpoint import Checkpoint
from shoal.engine.store.kept_state import read_state_if_any
from shoal.engine.store.opened_run import OpenedClients, OpenedRun
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.contract.base import Evaluation
from shoal.methods.losses.unit_rows import unit_rows
from shoal.methods.scores.probe import linear_probe
from shoal.methods.scores.representation import uniformity
from shoal.methods.ssd.fedsimclr_kmeans import network_tensors
from shoal.methods.ssd.self_supervised import SAMPLES_BETWEEN_ROUNDS, SelfSupervised
from shoal.methods.ssd.ssd import SSD
from shoal.methods.training.local import as_input, load
from shoal.review.results.result import run_result
from shoal_research.definition import Study
from shoal_research.figures import label_panel
from shoal_research.ssd.finetuning import finetune_accuracy
from shoal_research.table import Group, Table, each_run
from shoal_research.variants.ssd_forms import FormsSSD

Measure = Callable[[OpenedRun, Any, Checkpoint, Evaluation], float]
"""(run, its method, its last state, what evaluates it) to a number."""
PROBED_ON: dict[str, tuple[str, int | None]] = {"fashion-mnist": ("mnist", 10_000), "cifar100": ("cifar10", None)}
"""By the set that an encoder is trained on: the set that it is probed on, and how many training samples a probe has."""


def figures(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Draw uniformity against alignment, a figure a column and one mark a run: up and to the left is better."""
    points = pd.DataFrame(
        {"column": group.column.key, "row": group.row.caption, **run_result(run).metrics}
        for group in groups
        for run in group.runs.values()
    )
    points = points.reindex(columns=["column", "row", "alignment", "uniformity"]).dropna()
    for column, of_column in points.groupby("column"):
        figure = Figure(figsize=(6, 4.5), layout="constrained")
        axes = figure.subplots()
        for caption, of_row in of_column.groupby("row", sort=False):
            axes.scatter(of_row["alignment"], of_row["uniformity"], label=caption, alpha=0.8)
        xlabel = "alignment: mean squared distance of two views (lower is better)"
        label_panel(axes, xlabel, "uniformity (higher is better)")
        figure.savefig(folder / f"uniformity-alignment-{column}.png", dpi=120)
    return {}


def each_state(groups: Sequence[Group], kind: type[Any], measures: Mapping[str, Measure]) -> Table:
    """Return numbers of the last states of runs whose method is of a kind, by metric."""

    def number(run: RunFolder, measure: Measure) -> float | None:
        opened = OpenedRun(run)
        checkpoint = read_state_if_any(run)
        if checkpoint is None or not isinstance(opened.method, kind):
            return None
        return measure(opened, opened.method, checkpoint, opened.evaluation(checkpoint.server.round, final=True))

    return each_run(groups, {name: partial(number, measure=measure) for name, measure in measures.items()})


def finetuned(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return `finetune_1` and `finetune_10`: test accuracy after fine-tuning with 1 % and 10 % of the labels."""

    def accuracy(
        opened: OpenedRun, method: SelfSupervised, checkpoint: Checkpoint, evaluation: Evaluation, share: float
    ) -> float:
        return finetune_accuracy(judged_network(method, checkpoint).encoder, evaluation, share)

    return each_state(groups, SelfSupervised, {f"finetune_{n}": partial(accuracy, share=n / 100) for n in (1, 10)})


def projections(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return uniformity of the projections z, which the poster uses, beside that of the features; of SSD alone.

    `z_uniformity` is of `SAMPLES_BETWEEN_ROUNDS` training samples, projected as the loss of their own client projects
    them; `test_z_uniformity` of the server's projections of as many test samples, which belong to no client.
    """
    return each_state(groups, SSD, {"z_uniformity": of_clients, "test_z_uniformity": of_server})


@torch.no_grad()
def of_clients(opened: OpenedRun, method: SSD, checkpoint: Checkpoint, evaluation: Evaluation) -> float:
    """Return the uniformity of projections of training samples, an equal share of each client."""
    server = checkpoint.judged
    network = judged_network(method, checkpoint)
    count = max(1, SAMPLES_BETWEEN_ROUNDS // opened.partition.clients)
    parts = []
    for client in OpenedClients(opened, server.round, checkpoint.memory_index.clients()):
        order = torch.randperm(len(client.train), generator=evaluation.streams.torch(f"look {client.id}"))[:count]
        extra = method.prepare(method.broadcast(server, client.id), client)
        z = network(as_input(client.train.take(order.to(client.train.index.device)).x())).z
        z = method.directions(z, extra) if isinstance(method, FormsSSD) else unit_rows(z)
        parts.append(z)
    return uniformity(torch.cat(parts))


@torch.no_grad()
def of_server(opened: OpenedRun, method: SSD, checkpoint: Checkpoint, evaluation: Evaluation) -> float:
    """Return the uniformity of the server's projections of test samples."""
    test = opened.data.test_x
    generator = evaluation.streams.torch("look test")
    order = torch.randperm(len(test), generator=generator)[:SAMPLES_BETWEEN_ROUNDS].to(test.device)
    x = as_input(test[order].float().div_(255))
    network = judged_network(method, checkpoint)
    return uniformity(torch.cat([network(part).z for part in x.split(512)]))


def judged_network(method: SelfSupervised, checkpoint: Checkpoint) -> Any:
    """Return the network that a run is judged by, in eval mode."""
    network = method.network()
    load(network, network_tensors(checkpoint.judged.model))
    return network.eval()


def transfer(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return `transfer`, a linear probe of each run's encoder on another data set (`PROBED_ON`)."""

    def probe(opened: OpenedRun, method: SelfSupervised, checkpoint: Checkpoint, evaluation: Evaluation) -> float:
        name, limit = PROBED_ON[opened.prepared.spec.name]
        other = DeviceData(prepare(name, opened.prepared.folder.parent.parent))
        assert other.train_y is not None
        assert other.test_y is not None
        embed = method.embedder(checkpoint.judged)

        def features(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([embed(part.float().div(255)) for part in x.split(512)])

        generator = evaluation.streams.torch("transfer")
        order = torch.randperm(len(other.train_x), generator=generator)[:limit]
        train = features(other.train_x[order])
        test = features(other.test_x[:])
        return linear_probe(train, other.train_y[order], test, other.test_y[:], generator).accuracy

    return each_state(groups, SelfSupervised, {"transfer": probe})
