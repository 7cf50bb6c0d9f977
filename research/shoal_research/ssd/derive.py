"""Derived rows and figures of the self-supervised studies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

from shoal.data.sets.prepare import prepare
from shoal.data.views.augment import normalise, two_views
from shoal.data.views.view import DeviceData
from shoal.engine.store.checkpoint import Checkpoint
from shoal.engine.store.kept_state import read_state_if_any
from shoal.engine.store.opened_run import OpenedClients, OpenedRun
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.probe import linear_probe
from shoal.methods.scores.representation import alignment, split_uniformity, uniformity
from shoal.methods.ssd.fedsimclr_kmeans import network_tensors
from shoal.methods.ssd.self_supervised import SAMPLES_BETWEEN_ROUNDS, SelfSupervised
from shoal.methods.ssd.ssd import SSD
from shoal.methods.training.local import as_input, load
from shoal.review.results.result import run_result
from shoal_research.definition import Study, StudyError
from shoal_research.figures import label_panel
from shoal_research.ssd.finetuning import finetune_accuracy
from shoal_research.table import Group, Table, Values, each_run, metric_of, reference_of, same_seeds

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


def seeds_above(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Compare each row with the reference (FedAlignUniform) on the same seeds.

    Returns:
        The difference in the uniformity of features, of the server's projections of test samples (SSD alone), and in
        alignment.
    """
    table: Table = {}
    measures: dict[str, Callable[[RunFolder], float | None]] = {
        "uniformity_gain": lambda run: metric_of(run, "uniformity"),
        "test_z_gain": lambda run: projection_metrics(run.path).get("test_z_uniformity"),
        "alignment_change": lambda run: metric_of(run, "alignment"),
    }
    for group in groups:
        reference = reference_of(groups, group)
        if reference is None or group.row.role == "reference":
            continue
        for metric, value in measures.items():
            pairs = {seed: [value(run) for run in runs] for seed, runs in same_seeds(group, reference).items()}
            changes: Values = {
                seed: ours - theirs for seed, (ours, theirs) in pairs.items() if ours is not None and theirs is not None
            }
            if changes:
                table[group.place(metric)] = changes
    return table


def gradient_share(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return `dsr_gradient_share`: how strongly DSR pulls, mean over rounds and clients; runs without DSR have none."""

    def mean(run: RunFolder) -> float | None:
        table = run.table("clients")
        if "dsr_gradient_share" in table:
            return float(table["dsr_gradient_share"].dropna().mean())
        return None

    return each_run(groups, {"dsr_gradient_share": mean})


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
    """Return uniformity and alignment of the projections z, which the poster uses, beside those of the features.

    `SAMPLES_BETWEEN_ROUNDS` training samples are projected as the loss of their own client projects them:
    `z_uniformity` over all pairs, `z_uniformity_inter` over pairs of different
    clients, `z_uniformity_intra` over pairs of one client; `z_alignment`.
    `test_z_uniformity` is of the server's projections of as many test samples, which belong to no client.
    """
    names = ("z_uniformity", "z_uniformity_inter", "z_uniformity_intra", "z_alignment", "test_z_uniformity")

    def one(name: str) -> Callable[[RunFolder], float | None]:
        return lambda run: projection_metrics(run.path).get(name)

    return each_run(groups, {name: one(name) for name in names})


@functools.cache
def projection_metrics(path: Path) -> dict[str, float]:
    """Return the metrics of `projections` for a run of SSD, computed once; runs of other methods have none."""
    run = RunFolder(path)
    opened = OpenedRun(run)
    checkpoint = read_state_if_any(run)
    method = opened.method
    if checkpoint is None or not isinstance(method, SSD):
        return {}
    network = method.network()
    load(network, checkpoint.judged.model)
    network.eval()
    z, owner, mean_alignment = client_projections(method, network, opened, checkpoint)
    inter, intra = split_uniformity(z, owner)
    found = {
        "z_uniformity": uniformity(z),
        "z_uniformity_inter": inter,
        "z_uniformity_intra": intra,
        "z_alignment": mean_alignment,
    }
    test = opened.data.test_x
    if len(test) > 1:
        streams = opened.evaluation(checkpoint.judged.round, final=True).streams
        order = torch.randperm(len(test), generator=streams.torch("look test"))[:SAMPLES_BETWEEN_ROUNDS].to(test.device)
        with torch.no_grad():
            x = normalise(test[order].float().div_(255)).contiguous(memory_format=torch.channels_last)
            found["test_z_uniformity"] = uniformity(torch.cat([network(part).z for part in x.split(512)]))
    return found


@torch.no_grad()
def client_projections(
    method: SSD, network: torch.nn.Module, opened: OpenedRun, checkpoint: Checkpoint
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Project `SEEN` training samples, an equal share of each client, as the loss of their client projects them.

    Returns:
        Projections (n, d), the client of each (n,), and the mean alignment of two views of each sample.
    """
    server = checkpoint.judged
    recipe = method.recipe()
    parts = []
    owners = []
    alignments = []
    for client in OpenedClients(opened, server.round, checkpoint.memory_index.clients()):
        streams = opened.evaluation(server.round, final=True).streams
        order = torch.randperm(len(client.train), generator=streams.torch(f"look {client.id}"))
        mine = client.train.take(
            order[: max(1, SAMPLES_BETWEEN_ROUNDS // opened.partition.clients)].to(client.train.index.device)
        )
        extra = method.prepare(method.broadcast(server, client.id), client)
        generator = streams.torch(f"views {client.id}", opened.data.device)
        both = torch.cat((normalise(mine.x()), as_input(two_views(mine.x(), recipe, generator))))
        z = method.directions(network(both.contiguous(memory_format=torch.channels_last)).z, extra)
        directions, first, second = z.split(len(mine))
        parts.append(directions)
        owners.append(torch.full((len(mine),), client.id))
        alignments.append(alignment(first, second) * len(mine))
    z = torch.cat(parts)
    return z, torch.cat(owners).to(z.device), sum(alignments) / len(z)


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
