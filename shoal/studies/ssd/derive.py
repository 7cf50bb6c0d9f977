"""Derived rows and figures of the self-supervised studies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure

from shoal.data.augment import normalise
from shoal.data.view import DeviceData
from shoal.engine.store.kept_state import read_state_if_any
from shoal.engine.store.opened_run import OpenedClients, OpenedRun
from shoal.engine.store.represent import prepare_set
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.probe import linear_probe
from shoal.methods.scores.representation import alignment, split_uniformity, uniformity
from shoal.methods.ssd.self_supervised import SAMPLES_BETWEEN_ROUNDS, SelfSupervised
from shoal.methods.ssd.ssd import SSD
from shoal.methods.training.local import load, views
from shoal.review.pages.figures import save
from shoal.review.results.result import run_result
from shoal.studies.definition import Study
from shoal.studies.rows import Group, StudyRow, each_run, metric_of, reference_of, same_seeds, study_row


def figures(study: Study, groups: Sequence[Group], folder: Path) -> list[StudyRow]:
    """Uniformity against alignment of all rows; uniformity within and between clients, and kNN, over rounds."""
    for column in dict.fromkeys(group.column.key for group in groups):
        members = [group for group in groups if group.column.key == column]
        scatter(members, folder / f"uniformity-alignment-{column}.png")
        for metric in ("uniformity_inter", "uniformity_intra", "knn"):
            over_rounds(members, metric, folder / f"{metric.replace('_', '-')}-{column}.png")
    return []


def scatter(groups: Sequence[Group], path: Path) -> None:
    """Uniformity against alignment, one mark a run: up and to the left is better."""
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    for group in groups:
        found = [run_result(run).metrics for run in group.runs]
        points = [(m["alignment"], m["uniformity"]) for m in found if {"alignment", "uniformity"} <= m.keys()]
        if points:
            axes.scatter(*zip(*points, strict=True), label=group.row.caption, alpha=0.8)
    axes.set(
        xlabel="alignment: mean squared distance of two views (lower is better)", ylabel="uniformity (higher is better)"
    )
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def over_rounds(groups: Sequence[Group], metric: str, path: Path) -> None:
    """A metric over rounds, mean and range over runs."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    for group in groups:
        tables = [run.table("rounds") for run in group.runs]
        tables = [t[["round", metric]].dropna() for t in tables if metric in t]
        if not tables:
            continue
        curve = pd.concat(tables).groupby("round")[metric].agg(["mean", "min", "max"])
        (line,) = axes.plot(curve.index, curve["mean"], marker=".", label=group.row.caption)
        axes.fill_between(curve.index, curve["min"], curve["max"], alpha=0.12, color=line.get_color())
    axes.set(xlabel="communication round", ylabel=metric.replace("_", ", "))
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    save(figure, path)


def seeds_above(study: Study, groups: Sequence[Group], folder: Path) -> list[StudyRow]:
    """Each row beside the reference (FedAlignUniform) on the same seeds: the difference, and on how many it is better.

    In the uniformity of features, of the server's projections of test samples (SSD alone), and in alignment.
    """
    rows: list[StudyRow] = []
    measures: dict[str, tuple[Callable[[RunFolder], float | None], str, str]] = {
        "uniformity": (lambda run: metric_of(run, "uniformity"), "gain", "seeds_more_uniform"),
        "test_z": (lambda run: judged(run.path).get("test_z_uniformity"), "gain", "seeds_more_uniform_z"),
        "alignment": (lambda run: metric_of(run, "alignment"), "change", "seeds_no_worse_aligned"),
    }
    for group in groups:
        reference = reference_of(groups, group)
        if reference is None or group.row.role == "reference":
            continue
        for measure, (value, kind, counted) in measures.items():
            changes = {}
            for seed, (run, plain) in same_seeds(group, reference).items():
                if (ours := value(run)) is not None and (theirs := value(plain)) is not None:
                    changes[seed] = ours - theirs
            if changes:
                better = [change <= 0 if measure == "alignment" else change > 0 for change in changes.values()]
                rows.append(study_row(study, group, f"{measure}_{kind}", list(changes.values()), list(changes)))
                rows.append(replace(study_row(study, group, counted, [float(sum(better))], ()), seeds=len(changes)))
    return rows


def gradient_share(study: Study, groups: Sequence[Group], folder: Path) -> list[StudyRow]:
    """`dsr_gradient_share`: how strongly DSR pulls, mean over rounds and clients; of runs without it none."""

    def mean(run: RunFolder) -> float | None:
        table = run.table("clients")
        return float(table["dsr_gradient_share"].dropna().mean()) if "dsr_gradient_share" in table else None

    return each_run(study, groups, {"dsr_gradient_share": mean})


def projections(study: Study, groups: Sequence[Group], folder: Path) -> list[StudyRow]:
    """Uniformity and alignment of the projections z, where the poster takes them, next to those of the features.

    Of `SAMPLES_BETWEEN_ROUNDS` training samples, each projected as its own client's loss sees it: `z_uniformity` over
    all pairs, `z_uniformity_inter` over those of different clients, `z_uniformity_intra` over those of one client;
    `z_alignment`.
    `test_z_uniformity` is of the server's projections of `SAMPLES_BETWEEN_ROUNDS` test samples, which are no client's.
    """
    names = ("z_uniformity", "z_uniformity_inter", "z_uniformity_intra", "z_alignment", "test_z_uniformity")

    def one(name: str) -> Callable[[RunFolder], float | None]:
        return lambda run: judged(run.path).get(name)

    return each_run(study, groups, {name: one(name) for name in names})


def judge_projections(path: Path) -> dict[str, float]:
    """The metrics of `projections` of one run of SSD; of other methods none."""
    run = RunFolder(path)
    opened, checkpoint = OpenedRun(run), read_state_if_any(run)
    method = opened.method
    if checkpoint is None or not isinstance(method, SSD):
        return {}
    server = checkpoint.judged
    network = method.network()
    load(network, server.model)
    network.eval()
    recipe = method.recipe()
    parts, owners, aligned = [], [], []
    with torch.no_grad():
        for client in OpenedClients(opened, server.round, checkpoint.memory_index):
            streams = opened.evaluation(server.round, final=True).streams
            order = torch.randperm(len(client.train), generator=streams.torch(f"look {client.id}"))
            share = max(1, SAMPLES_BETWEEN_ROUNDS // opened.partition.clients)
            mine = client.train.take(order[:share].to(client.train.index.device))
            extra = method.prepare(method.broadcast(server, client.id), client)
            generator = streams.torch(f"views {client.id}", opened.data.device)
            both = torch.cat((normalise(mine.x()), views(mine, torch.arange(len(mine)), recipe, generator)))
            z = method.directions(network(both.contiguous(memory_format=torch.channels_last)).z, extra)
            plain, a, b = z.split(len(mine))
            parts.append(plain)
            owners.append(torch.full((len(mine),), client.id))
            aligned.append(alignment(a, b) * len(mine))
    z, owner = torch.cat(parts), torch.cat(owners)
    inter, intra = split_uniformity(z, owner.to(z.device))
    found = {
        "z_uniformity": uniformity(z),
        "z_uniformity_inter": inter,
        "z_uniformity_intra": intra,
        "z_alignment": sum(aligned) / len(z),
    }
    test = opened.data.test_x
    if len(test) > 1:
        streams = opened.evaluation(server.round, final=True).streams
        order = torch.randperm(len(test), generator=streams.torch("look test"))[:SAMPLES_BETWEEN_ROUNDS].to(test.device)
        with torch.no_grad():
            x = normalise(test[order].float().div_(255)).contiguous(memory_format=torch.channels_last)
            found["test_z_uniformity"] = uniformity(torch.cat([network(part).z for part in x.split(512)]))
    return found


judged = functools.cache(judge_projections)
"""Each run is judged once, whichever derived rows ask."""


@dataclass(frozen=True)
class Transfer:
    """The options of a study of transfer.

    Attributes:
        to: the data set on which encoders are probed.
        limit: the number of training samples that the probe learns from; None: all.
    """

    to: str
    limit: int | None = None


def transfer(study: Study, groups: Sequence[Group], folder: Path) -> list[StudyRow]:
    """Linear probe of each run's encoder on another data set, which the study's options name (`Transfer`)."""
    wanted = Transfer(**study.options)

    def probe(run: RunFolder) -> float | None:
        opened, checkpoint = OpenedRun(run), read_state_if_any(run)
        if checkpoint is None or not isinstance(opened.method, SelfSupervised):
            return None
        other = DeviceData(prepare_set(wanted.to, opened.prepared.folder.parent.parent))
        if other.train_y is None or other.test_y is None or other.spec.shape != opened.prepared.spec.shape:
            raise ValueError(f"{wanted.to} has no labels, or other images than {opened.prepared.spec.name}")
        embed = opened.method.embedder(checkpoint.judged)
        limit = wanted.limit or len(other.train_x)

        def features(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([embed(part.float().div(255)) for part in x.split(512)])

        generator = opened.evaluation(checkpoint.server.round, final=True).streams.torch("transfer")
        order = torch.randperm(len(other.train_x), generator=generator)[:limit]
        parts = features(other.train_x[order]), other.train_y[order], features(other.test_x), other.test_y
        return linear_probe(*parts, generator).accuracy

    return each_run(study, groups, {"transfer": probe})
