"""A client's batches: whole epochs, or as many steps as the settings name."""

from __future__ import annotations

from typing import Any

import torch

from shoal.methods.contract.context import LocalSettings
from shoal.methods.training.local import batches


def taken(client: Any, **local: Any) -> list[torch.Tensor]:
    return list(batches(client, LocalSettings(batch=8, **local)))


def test_steps_count_batches_over_the_ends_of_epochs(world: Any) -> None:
    client = world.client(every=2)
    epoch = len(taken(client, epochs=1))
    assert epoch > 1
    for steps in (1, epoch, 2 * epoch + 1):
        found = taken(client, steps=steps)
        assert len(found) == steps
        assert all(len(batch) == 8 for batch in found)


def test_steps_are_the_first_batches_of_the_epochs(world: Any) -> None:
    client = world.client(every=2)
    epochs = taken(client, epochs=2)
    found = taken(client, steps=len(epochs))
    assert all(torch.equal(one, other) for one, other in zip(epochs, found, strict=True))
