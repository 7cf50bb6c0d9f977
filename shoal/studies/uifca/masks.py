"""Table 2 of UIFCA: can two flows, each trained on one digit, tell the two digits apart?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from shoal.core.errors import DataError
from shoal.core.streams import Streams, stream_seed
from shoal.data.csv_file import write_csv
from shoal.data.prepared import open_prepared
from shoal.methods.training.local import seeded_build
from shoal.methods.uifca.flow_method import FORWARD_POINTS, dequantise
from shoal.models.normalising_flows import Flow, bits_per_dimension, build_flow
from shoal.review.pages.figures import save


def masks(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """A row of table 2: one flow for each of two digits, trained on that digit's images; the share of images that are
    likelier under their own digit's flow.

    Args:
        settings: set (name), digits, images (of each digit), flow, width, blocks, margin, background, epochs, batch,
            lr (Adam), decay (of the learning rate by epoch).
        seed: of the images, weights, batches and noise.
        folder: for the table over epochs and a figure with samples drawn from both flows.

    Returns:
        `correct` of the test images, `correct_train`, and `bits`, the training loss in bits per dimension.
    """
    prepared = open_prepared(Path(settings["prepared"][settings["set"]]))
    if prepared.train_y is None or prepared.test_x is None or prepared.test_y is None:
        raise DataError(f"{settings['set']} has no labels or no test part, and both are needed here")
    draw = Streams(seed).torch("masks images")
    train, held = [], []
    for digit in settings["digits"]:
        at = torch.nonzero(torch.from_numpy(prepared.train_y == digit)).squeeze(1)
        rows = at[torch.randperm(len(at), generator=draw)[: settings["images"]]]
        train.append(torch.from_numpy(prepared.train_x[rows.numpy()]))
        held.append(torch.from_numpy(prepared.test_x[prepared.test_y == digit]))
    flows = [
        seeded_build(
            lambda: build_flow(
                settings["flow"], prepared.spec.shape, settings["width"], settings["blocks"], settings["margin"]
            ),
            stream_seed(seed, f"masks flow {k}"),
        )
        for k in range(len(train))
    ]
    kinds = [flow for flow in flows if isinstance(flow, Flow)]
    optimisers = [torch.optim.Adam(flow.parameters(), settings["lr"]) for flow in kinds]
    table = []
    for epoch in range(1, settings["epochs"] + 1):
        bits = 0.0
        for group in (group for optimiser in optimisers for group in optimiser.param_groups):
            group["lr"] = settings["lr"] * settings["decay"] ** (epoch - 1)
        for k, (flow, optimiser) in enumerate(zip(kinds, optimisers, strict=True)):
            noise = Streams(seed, epoch, k).torch("masks noise")
            bits += train_epoch(flow, optimiser, train[k], settings, noise) / len(kinds)
        table.append(
            {
                "epoch": epoch,
                "bits": bits,
                "correct": correct(kinds, held, settings, seed),
            }
        )
    table[-1]["correct_train"] = correct(kinds, train, settings, seed)
    write_csv(pd.DataFrame(table), folder / "epochs.csv")
    draw_samples(kinds, folder / "samples.png", seed)
    return {name: value for name, value in table[-1].items() if name != "epoch"}


def train_epoch(
    flow: Flow, optimiser: torch.optim.Optimizer, images: Tensor, settings: dict[str, Any], generator: torch.Generator
) -> float:
    """One pass over a digit's images; the mean loss in bits per dimension."""
    flow.train()
    order, total, steps = torch.randperm(len(images), generator=generator), 0.0, 0
    for rows in order[: len(order) // settings["batch"] * settings["batch"]].split(settings["batch"]):
        x = dequantise(images[rows], settings["background"], generator)
        loss = bits_per_dimension(flow.log_prob(x), x[0].numel()).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        total, steps = total + float(loss.detach()), steps + 1
    return total / steps


@torch.no_grad()
def correct(flows: list[Flow], images: list[Tensor], settings: dict[str, Any], seed: int) -> float:
    """The share of images that are likeliest under the flow of their own digit."""
    right = total = 0
    for k, own in enumerate(images):
        noise = Streams(seed, 0, k).torch("masks noise")
        for part in own.split(FORWARD_POINTS):
            x = dequantise(part, settings["background"], noise)
            likely = torch.stack([flow.eval().log_prob(x) for flow in flows]).nan_to_num(nan=-torch.inf).argmax(0)
            right, total = right + int((likely == k).sum()), total + len(part)
    return right / total


def draw_samples(flows: list[Flow], path: Path, seed: int, columns: int = 10) -> None:
    """A row of images drawn from each flow."""
    figure = Figure(figsize=(columns * 0.7, len(flows) * 0.75), layout="constrained")
    for row, axes in zip(flows, figure.subplots(len(flows), columns, squeeze=False), strict=True):
        images = row.eval().sample(columns, Streams(seed).torch("masks samples")).nan_to_num()
        for image, at in zip(images, axes, strict=True):
            at.imshow(image.mean(0), cmap="gray", vmin=0, vmax=255)
            at.axis("off")
    save(figure, path)
