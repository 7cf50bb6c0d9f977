"""Advice on `--size` for a set of photos: the time of training on images of several sizes, measured here."""

from __future__ import annotations

import time

import torch

from shoal.models.encoders import build_encoder

LARGE_SIDE = 128
"""Pixels of the longer side above which another size is worth a thought."""
SIDES = (224, 128)
"""Longer sides that are suggested, where images are larger."""
ENCODER = "resnet18"
"""The network that is measured: of those that train on photos, the one with a published architecture."""
BATCH = 4
IMAGES = 1000
"""Images for which times are given."""


def size_advice(shape: tuple[int, ...]) -> str:
    """Return how long training takes an epoch for images of this size and of smaller ones; empty for small images.

    One step on a batch is measured for each size, after another one that is not.

    Args:
        shape: channels, height and width of the images.
    """
    _, height, width = shape
    longer = max(height, width)
    if longer <= LARGE_SIDE:
        return ""
    sizes = [(height, width)]
    for side in SIDES:
        if side < longer:
            sizes.append((max(1, round(height * side / longer)), max(1, round(width * side / longer))))
    times = [f"{seconds_of_epoch((shape[0], *size)):.0f} s at {size[0]}x{size[1]}" for size in sizes]
    smaller = "x".join(map(str, sizes[-1]))
    return (
        f"training takes about {', '.join(times)} for {IMAGES:,} images and one epoch ({ENCODER}, on one core here). "
        f"If a smaller size shows what you look for, add the set with --size {smaller}, for example. The frozen "
        "encoder sees at most 224 pixels a side, whatever the size"
    )


def seconds_of_epoch(shape: tuple[int, ...]) -> float:
    """Return the seconds that one epoch over `IMAGES` images takes on one core of this machine.

    Args:
        shape: channels, height and width of an image.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        network = build_encoder(ENCODER, shape)
        x = torch.zeros((BATCH, *shape))
        network(x).square().mean().backward()
        start = time.perf_counter()
        network(x).square().mean().backward()
        return (time.perf_counter() - start) * IMAGES / BATCH
    finally:
        torch.set_num_threads(threads)
