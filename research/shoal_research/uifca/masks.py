"""Table 2 of UIFCA: can two flows, each trained on one digit, tell the two digits apart?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.data.sets.prepare import prepare
from shoal.data.sets.prepared import Prepared
from shoal.engine.settings import places
from shoal.methods.training.steps import descend
from shoal.methods.uifca.flow_method import FORWARD_POINTS, dequantise
from shoal.models.normalising_flows import Flow, bits_per_dimension
from shoal_research.uifca.flows import make_flow


def masks(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """Simulate a row of table 2: train one flow for each of two digits, and tell the digits apart by likelihood.

    Args:
        settings: set (name), digits, images (of each digit), flow, width, blocks, margin, background, epochs, batch,
            lr (Adam), decay (of the learning rate by epoch).
        seed: of the images, weights, batches and noise.
        folder: unused.

    Returns:
        `correct`, the share of test images that are likelier under their own digit's flow, and `correct_train`, the
        share of training images.
    """
    prepared = prepare(settings["set"], places.store(), mirror=places.mirror())
    train, test = images_by_digit(prepared, settings, seed)
    network = (settings["width"], settings["blocks"], settings["margin"])
    flows = []
    for k, images in enumerate(train):
        flow = make_flow(seed, f"masks flow {k}", settings["flow"], prepared.spec.shape, *network)
        optimiser = torch.optim.Adam(flow.parameters(), settings["lr"])
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda epoch: settings["decay"] ** epoch)
        for epoch in range(1, settings["epochs"] + 1):
            noise = Streams(seed, epoch, k).torch("masks noise")
            for x in batches_of(images, settings, noise):
                loss = bits_per_dimension(flow.log_prob(x), x[0].numel()).mean()
                descend(loss, flow.parameters(), optimiser)
            schedule.step()
        flows.append(flow.eval())
    return {"correct": correct(flows, test, settings, seed), "correct_train": correct(flows, train, settings, seed)}


def images_by_digit(prepared: Prepared, settings: dict[str, Any], seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return training images, a random draw, and all test images of each digit, uint8 (n, channels, height, width)."""
    assert prepared.train_y is not None, "the set of this study has labels and a test part"
    assert prepared.test_x is not None
    draw = Streams(seed).torch("masks images")
    train = []
    test = []
    for digit in settings["digits"]:
        own = torch.nonzero(torch.from_numpy(prepared.train_y == digit)).squeeze(1)
        rows = own[torch.randperm(len(own), generator=draw)[: settings["images"]]]
        train.append(torch.from_numpy(prepared.train_x[rows.numpy()]))
        test.append(torch.from_numpy(prepared.test_x[prepared.test_y == digit]))
    return train, test


def batches_of(images: Tensor, settings: dict[str, Any], generator: torch.Generator) -> Iterator[Tensor]:
    """Yield one pass over a digit's images in random order with noise, without the last images of no whole batch."""
    order = torch.randperm(len(images), generator=generator)
    for rows in order[: len(order) // settings["batch"] * settings["batch"]].split(settings["batch"]):
        yield dequantise(images[rows], settings["background"], generator)


@torch.no_grad()
def correct(flows: list[Flow], images: list[Tensor], settings: dict[str, Any], seed: int) -> float:
    """Return the share of images that are likeliest under the flow of their own digit."""
    right = 0
    for k, own in enumerate(images):
        noise = Streams(seed, 0, k).torch("masks noise")
        for part in own.split(FORWARD_POINTS):
            x = dequantise(part, settings["background"], noise)
            likely = torch.stack([flow.log_prob(x) for flow in flows]).nan_to_num(nan=-torch.inf).argmax(0)
            right += int((likely == k).sum())
    return right / sum(map(len, images))
