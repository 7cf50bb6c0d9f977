"""Derived rows and figures of the self-supervised studies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

from shoal.data.sets.prepare import prepare
from shoal.data.views.view import DeviceData
from shoal.engine.store.checkpoint import Checkpoint
from shoal.engine.store.kept_state import read_state_if_any
from shoal.engine.store.opened_run import OpenedClients, OpenedRun
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.probe import linear_probe
from shoal.methods.scores.representation import uniformity
from shoal.methods.ssd.fedsimclr_kmeans import network_tensors
from shoal.methods.ssd.self_supervised import SAMPLES_BETWEEN_ROUNDS, SelfSupervised
from shoal.methods.ssd.ssd import SSD
from shoal.methods.training.local import as_input, load
from shoal.review.results.result import run_result
from shoal_research.definition import Study, StudyError
from shoal_research.figures import label_panel
from shoal_research.ssd.finetuning import finetune_accuracy
from shoal_research.table import Group, Table, each_run

PROBED_ON: dict[str, tuple[str, int | None]] = {"fashion-mnist": ("mnist", 10_000), "cifar100": ("cifar10", None)}
"""By the set that an encoder is trained on: the set that it is probed on, and how many training samples a probe has."""


def figures(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Draw uniformity against alignment."""
    for column in dict.fromkeys(group.column.key for group in groups):
        members = [group for group in groups if group.column.key == column]
        scatter(members, folder / f"uniformity-alignment-{column}.png")
    return {}


def scatter(groups: Sequence[Group], path: Path) -> None:
    """Draw uniformity against alignment, one mark a run: up and to the left is better."""
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    for group in groups:
        found = [run_result(run).metrics for run in group.runs]
        points = [(m["alignment"], m["uniformity"]) for m in found if {"alignment", "uniformity"} <= m.keys()]
        if points:
            axes.scatter(*zip(*points, strict=True), label=group.row.caption, alpha=0.8)
    label_panel(
        axes, "alignment: mean squared distance of two views (lower is better)", "uniformity (higher is better)"
    )
    figure.savefig(path, dpi=120)


def finetuned(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return `finetune_1` and `finetune_10`: test accuracy after fine-tuning with 1 % and 10 % of the labels."""

    def accuracy(run: RunFolder, percent: int) -> float | None:
        opened = OpenedRun(run)
        checkpoint = read_state_if_any(run)
        method = opened.method
        if checkpoint is None or not isinstance(method, SelfSupervised) or opened.data.test_y is None:
            return None
        network = method.network()
        load(network, network_tensors(checkpoint.judged.model))
        evaluation = opened.evaluation(checkpoint.server.round, final=True)
        return finetune_accuracy(network.encoder, evaluation, percent / 100)

    return each_run(groups, {f"finetune_{n}": functools.partial(accuracy, percent=n) for n in (1, 10)})


def projections(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return uniformity of the projections z, which the poster uses, beside that of the features; of SSD alone.

    `z_uniformity` is of `SAMPLES_BETWEEN_ROUNDS` training samples, projected as the loss of their own client projects
    them; `test_z_uniformity` of the server's projections of as many test samples, which belong to no client.
    """
    measures = {"z_uniformity": of_clients, "test_z_uniformity": of_server}

    def one(measure: Callable[[OpenedRun, SSD, Checkpoint], float]) -> Callable[[RunFolder], float | None]:
        def of_run(run: RunFolder) -> float | None:
            opened = OpenedRun(run)
            checkpoint = read_state_if_any(run)
            if checkpoint is None or not isinstance(opened.method, SSD):
                return None
            return measure(opened, opened.method, checkpoint)

        return of_run

    return each_run(groups, {name: one(measure) for name, measure in measures.items()})


@torch.no_grad()
def of_clients(opened: OpenedRun, method: SSD, checkpoint: Checkpoint) -> float:
    """Return the uniformity of projections of training samples, an equal share of each client."""
    server = checkpoint.judged
    network = judged_network(method, checkpoint)
    count = max(1, SAMPLES_BETWEEN_ROUNDS // opened.partition.clients)
    streams = opened.evaluation(server.round, final=True).streams
    parts = []
    for client in OpenedClients(opened, server.round, checkpoint.memory_index.clients()):
        order = torch.randperm(len(client.train), generator=streams.torch(f"look {client.id}"))[:count]
        extra = method.prepare(method.broadcast(server, client.id), client)
        z = network(as_input(client.train.take(order.to(client.train.index.device)).x())).z
        parts.append(method.directions(z, extra))
    return uniformity(torch.cat(parts))


@torch.no_grad()
def of_server(opened: OpenedRun, method: SSD, checkpoint: Checkpoint) -> float:
    """Return the uniformity of the server's projections of test samples."""
    test = opened.data.test_x
    streams = opened.evaluation(checkpoint.judged.round, final=True).streams
    order = torch.randperm(len(test), generator=streams.torch("look test"))[:SAMPLES_BETWEEN_ROUNDS].to(test.device)
    x = as_input(test[order].float().div_(255))
    network = judged_network(method, checkpoint)
    return uniformity(torch.cat([network(part).z for part in x.split(512)]))


def judged_network(method: SSD, checkpoint: Checkpoint) -> torch.nn.Module:
    """Return the network that a run is judged by, in eval mode."""
    network: torch.nn.Module = method.network()
    load(network, checkpoint.judged.model)
    network.eval()
    return network


def transfer(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return `transfer`, a linear probe of each run's encoder on another data set (`PROBED_ON`)."""

    def probe(run: RunFolder) -> float | None:
        opened = OpenedRun(run)
        checkpoint = read_state_if_any(run)
        if checkpoint is None or not isinstance(opened.method, SelfSupervised):
            return None
        name, limit = PROBED_ON[run.settings().data.name]
        other = DeviceData(prepare(name, opened.prepared.folder.parent.parent))
        if other.train_y is None or other.test_y is None or other.spec.shape != opened.prepared.spec.shape:
            raise StudyError(
                f"data set {name!r} has no labels, or images of another shape than {opened.prepared.spec.name!r}"
            )
        embed = opened.method.embedder(checkpoint.judged)

        def features(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([embed(part.float().div(255)) for part in x.split(512)])

        generator = opened.evaluation(checkpoint.server.round, final=True).streams.torch("transfer")
        order = torch.randperm(len(other.train_x), generator=generator)[:limit]
        train = features(other.train_x[order])
        test = features(other.test_x[:])
        return linear_probe(train, other.train_y[order], test, other.test_y[:], generator).accuracy

    return each_run(groups, {"transfer": probe})
