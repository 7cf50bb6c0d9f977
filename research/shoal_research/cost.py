"""What it costs to run the cells of a claim, from measured times: of kept results, and of steps on a GPU.

The cost is that of the images that pass through the network in training. It is good for a decision whether to run a
study, and not for a plan of an afternoon: evaluation is a part of the measured times, and grows otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal_research.cells import Cell, cells
from shoal_research.definition import Claim, Study, load_study, study_names
from shoal_research.kept import DOCS, load_kept
from shoal_research.provenance import NO_GPU

H100_SECONDS_PER_IMAGE = {
    "fedpnp": 8.3e-3 / 128,
    "fedcc": 6.1e-3 / 128,
    "fedsimclr": 6.2e-3 / 128,
    "fedavg": 3.4e-3 / 128,
}
"""Of a ResNet-18 in training, by method, on one H100 (docs/performance.md)."""
H100_OTHERS = 8.3e-3 / 128
"""Of methods that were not timed there: that of the slowest."""
FLOW_SECONDS_PER_IMAGE = 0.23 / 32
"""Of a RealNVP for images, two blocks of 32 filters, on a core."""
GPU_NETWORKS = ("resnet18",)
IMAGE_FLOWS = ("cycle", "standard")
DATA_SIZES = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000, "ag-news": 7_600}
"""Training samples of built-in sets, where a study sets no limit."""
SIZE_KEYS = ("images", "epochs", "blocks")
MINUTES_PER_HOUR = 60


def cost_words(study: Study, scale: str, claims: Sequence[Claim]) -> str:
    """Return what it costs to run the cells of some claims at a scale, in words."""
    wanted = {f"{each.row}/{each.column}" for claim in claims for each in claim.quantities()}
    planned = [cell for cell in cells(study, scale, None) if f"{cell.row.key}/{cell.column.key}" in wanted]
    gpu = [cell for cell in planned if on_gpu(study, cell)]
    seconds = [seconds_of(study, cell) for cell in planned]
    known = [value for value in seconds if value is not None]
    if len(known) < len(seconds) or not known:
        return "cost not measured"
    if gpu:
        return f"about {duration(sum(known), 'GPU')} on an H100"
    return f"about {duration(sum(known), 'core')}"


def duration(seconds: float, what: str) -> str:
    """Return a time in minutes or hours, with one or two digits.

    >>> duration(5400, "core"), duration(36_000, "GPU")
    ('90 core minutes', '10 GPU hours')
    """
    minutes = seconds / 60
    if minutes < 2 * MINUTES_PER_HOUR:
        return f"{rounded(max(1.0, minutes))} {what} minutes"
    return f"{rounded(minutes / MINUTES_PER_HOUR)} {what} hours"


def rounded(value: float) -> str:
    """Return a number with two digits."""
    return f"{float(f'{value:.2g}'):,.0f}"


def on_gpu(study: Study, cell: Cell) -> bool:
    """Return whether the network of a cell is too large for a processor."""
    return not study.simulate and cell.settings["model"]["encoder"] in GPU_NETWORKS


def seconds_of(study: Study, cell: Cell) -> float | None:
    """Return the seconds of a cell with one seed, on an H100 or on a core; None where nothing like it was timed."""
    passes = image_passes(study, cell.settings)
    if passes == 0:
        return 0.0
    if on_gpu(study, cell):
        return passes * H100_SECONDS_PER_IMAGE.get(cell.settings["method"]["name"], H100_OTHERS)
    if not study.simulate and cell.settings["method"].get("flow") in IMAGE_FLOWS:
        return passes * FLOW_SECONDS_PER_IMAGE
    rate = core_rates().get(network_of(study, cell.settings))
    if rate is None:
        return None
    return passes * rate


def network_of(study: Study, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what decides the time of an image: the network and the data, or the function of a simulated study."""
    if study.simulate:
        return (study.system, study.simulate)
    return (settings["model"]["encoder"], settings["data"]["name"].partition("-only")[0])


@functools.cache
def core_rates(docs: Path = DOCS) -> dict[tuple[str, ...], float]:
    """Return the seconds of an image on the processors that made kept results without a GPU, by network and data."""
    seconds: dict[tuple[str, ...], float] = {}
    passes: dict[tuple[str, ...], float] = {}
    for name in study_names():
        study = load_study(name)
        for scale in study.scales:
            kept = load_kept(name, scale, docs)
            if kept is None or not kept.provenance.seconds or NO_GPU not in kept.provenance.machine:
                continue
            runs = measured_cells(study, scale, {f"{row.row}/{row.column}": len(row.seeds) for row in kept.rows})
            networks = {network_of(study, cell.settings) for cell, _ in runs}
            if len(networks) == 1:
                network = networks.pop()
                work = sum(count * image_passes(study, cell.settings) for cell, count in runs)
                seconds[network] = seconds.get(network, 0.0) + kept.provenance.seconds
                passes[network] = passes.get(network, 0.0) + work
    return {network: seconds[network] / passes[network] for network in seconds if passes[network]}


def measured_cells(study: Study, scale: str, seeds: Mapping[str, int]) -> list[tuple[Cell, int]]:
    """Return the cells of a study that were measured, each with its number of seeds."""
    planned = cells(study, scale, 1)
    return [
        (cell, seeds[f"{cell.row.key}/{cell.column.key}"])
        for cell in planned
        if f"{cell.row.key}/{cell.column.key}" in seeds
    ]


def image_passes(study: Study, settings: Mapping[str, Any]) -> float:
    """Return the images that pass through the network in training, each as often as it does."""
    if study.simulate:
        passes = (settings.get("width", 32) / 32) ** 2
        for name in SIZE_KEYS:
            passes *= settings.get(name, 1)
        return float(passes)
    method = settings["method"]
    clients = settings["partition"].get("clients") or 1
    images_per_step = clients * settings["local"]["batch"]
    if "comm_rounds" in method:
        flows = settings["model"].get("clusters") or clients
        return float(images_per_step * method["cluster_rounds"] * method["comm_rounds"] * method["steps"] * flows)
    if settings["rounds"] >= 1000 and "steps" in method:
        return float(images_per_step * method["steps"])
    if "steps" in method:
        return float(images_per_step * method["steps"] * settings["rounds"])
    if settings["rounds"] >= 1000:
        return 0.0
    size = settings["data"]["limit"] or DATA_SIZES.get(settings["data"]["name"], 60_000)
    share = settings["participation"].get("fraction") or 1.0
    return float(size * settings["local"]["epochs"] * settings["rounds"] * share)
