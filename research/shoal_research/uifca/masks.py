"""Table 2 of UIFCA: can two flows, each trained on one digit, tell the two digits apart?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.core.errors import DataError
from shoal.core.streams import Streams
from shoal.data.sets.prepare import prepare
from shoal.data.sets.prepared import Prepared
from shoal.engine.settings import places
from shoal.methods.uifca.flow_method import FORWARD_POINTS, dequantise
from shoal.models.normalising_flows import Flow, bits_per_dimension
from shoal_research.uifca.flows import descend, make_flow


def masks(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """Simulate a row of table 2: train one flow for each of two digits, and tell the digits apart by likelihood.

    Args:
        settings: set (name), digits, images (of each digit), flow, width, blocks, margin, background, epochs, batch,
            lr (Adam), decay (of the learning rate by epoch).
        seed: of the images, weights, batches and noise.
        folder: unused.

    Returns:
        `correct`, the share of test images that are likelier under their own digit's flow; `correct_train`, the share
        of training images; and `bits`, the training loss in bits per dimension.
    """
    prepared = prepare(settings["set"], places.store(), mirror=places.mirror())
    train, test = images_by_digit(prepared, settings, seed)
    network = (settings["width"], settings["blocks"], settings["margin"])
    flows = [
        make_flow(seed, f"masks flow {k}", settings["flow"], prepared.spec.shape, *network) for k in range(len(train))
    ]
    optimisers = [torch.optim.Adam(flow.parameters(), settings["lr"]) for flow in flows]
    metrics: dict[str, float] = {}
    for epoch in range(1, settings["epochs"] + 1):
        bits = 0.0
        for k, (flow, optimiser) in enumerate(zip(flows, optimisers, strict=True)):
            for group in optimiser.param_groups:
                group["lr"] = settings["lr"] * settings["decay"] ** (epoch - 1)
            noise = Streams(seed, epoch, k).torch("masks noise")
            bits += train_epoch(flow, optimiser, train[k], settings, noise) / len(flows)
        metrics = {"bits": bits}
    shares = {"correct": correct(flows, test, settings, seed), "correct_train": correct(flows, train, settings, seed)}
    return metrics | shares


def images_by_digit(prepared: Prepared, settings: dict[str, Any], seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return training images, a random draw, and all test images of each digit, uint8 (n, channels, height, width).

    Raises:
        DataError: the set has no labels, or no test part.
    """
    if prepared.train_y is None or prepared.test_x is None or prepared.test_y is None:
        raise DataError(f"{settings['set']} has no labels or no test part, and this study needs both")
    draw = Streams(seed).torch("masks images")
    train = []
    test = []
    for digit in settings["digits"]:
        own = torch.nonzero(torch.from_numpy(prepared.train_y == digit)).squeeze(1)
        rows = own[torch.randperm(len(own), generator=draw)[: settings["images"]]]
        train.append(torch.from_numpy(prepared.train_x[rows.numpy()]))
        test.append(torch.from_numpy(prepared.test_x[prepared.test_y == digit]))
    return train, test


def train_epoch(
    flow: Flow, optimiser: torch.optim.Optimizer, images: Tensor, settings: dict[str, Any], generator: torch.Generator
) -> float:
    """Train a flow for one pass over a digit's images; return the mean loss in bits per dimension."""
    flow.train()
    order = torch.randperm(len(images), generator=generator)
    batches = order[: len(order) // settings["batch"] * settings["batch"]].split(settings["batch"])
    total = 0.0
    for rows in batches:
        x = dequantise(images[rows], settings["background"], generator)
        loss = bits_per_dimension(flow.log_prob(x), x[0].numel()).mean()
        descend(optimiser, loss)
        total += float(loss.detach())
    return total / len(batches)


@torch.no_grad()
def correct(flows: list[Flow], images: list[Tensor], settings: dict[str, Any], seed: int) -> float:
    """Return the share of images that are likeliest under the flow of their own digit."""
    right = 0
    for k, own in enumerate(images):
        noise = Streams(seed, 0, k).torch("masks noise")
        for part in own.split(FORWARD_POINTS):
            x = dequantise(part, settings["background"], noise)
            likely = torch.stack([flow.eval().log_prob(x) for flow in flows]).nan_to_num(nan=-torch.inf).argmax(0)
            right += int((likely == k).sum())
    return right / sum(map(len, images))
