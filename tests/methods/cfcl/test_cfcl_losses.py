"""One local step of CF-CL, against the same step done again from the equations."""

import pytest
import torch
from torch.nn.utils import vector_to_parameters

from shoal.data.views.augment import Recipe, augment, normalise
from tests.methods.one_step import (
    LR,
    client_of_one_batch,
    method_of_one_step,
    order,
    stepped,
)

RECIPE = Recipe(crop=(0.5, 1.0), flip=0.5, blur=0.5)


def triplet(network, views):
    """Eq. 1 with margin 1: the negative of an anchor is the sample before it in the batch."""
    anchor, positive = network(views).chunk(2)
    terms = [
        torch.relu((anchor[i] - positive[i]).pow(2).sum() - (anchor[i] - anchor[i - 1]).pow(2).sum() + 1.0)
        for i in range(len(anchor))
    ]
    return sum(terms) / len(terms)


def test_one_step(world):
    method = method_of_one_step(world, "cfcl", steps=1)
    client = client_of_one_batch(world)
    message = method.broadcast(world.start(method), 0)
    assert message.facts["next"] == "train"
    assert message.facts["steps"] == 1
    update = method.client_update(message, client)
    network = method.network()
    parameters = list(network.parameters())
    count = sum(p.numel() for p in parameters)
    vector_to_parameters(message.tensors["weights"][:count], parameters)
    network.train()
    x, generator = client.train.x(order(client)), client.streams.torch("views")
    value = triplet(network, normalise(torch.cat((x, augment(x, RECIPE, generator)))))
    assert update.metrics["loss"] == pytest.approx(value.item(), rel=1e-4)
    trained = torch.cat([t.reshape(-1) for t in stepped(network, value).values()])
    found = update.message.tensors["weights"][:count]
    torch.testing.assert_close(found, trained, rtol=1e-4, atol=2e-6)
    moved = (found - message.tensors["weights"][:count]).norm() / LR
    assert moved > 1e-3, "the step is seen"
