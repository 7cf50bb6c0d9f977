"""IFCA: a client trains the model that fits it best, and a model is averaged over those that chose it."""

from dataclasses import replace

import torch

from shoal.methods.contract.base import Message, Update
from tests.methods.cfl.test_cfl import start


def test_a_client_trains_the_model_with_the_lowest_loss(world):
    method = world.method("ifca", models=2, epochs=4, lr=0.05)
    server = start(method)
    update = method.client_update(method.broadcast(server, 0), world.client())
    untrained = server.tensors["models"][1 - update.message.facts["choice"]]
    trained = update.message.tensors["weights"]
    for models, best in ((torch.stack((untrained, trained)), 1), (torch.stack((trained, untrained)), 0)):
        there = replace(server, model={"models": models})
        found = method.client_update(method.broadcast(there, 0), world.client(round=2))
        assert found.message.facts["choice"] == best
        moved = (found.message.tensors["weights"] - models).norm(dim=1)
        assert moved[best] < moved[1 - best], "it began at the chosen model"


def test_models_are_averaged_over_those_that_chose_them(world):
    method = world.method("ifca", models=3)
    server = start(method, 3, (0, 1, 1))
    size = server.tensors["models"].shape[1]
    updates = [
        Update(Message({"weights": torch.full((size,), value)}, {"n": n, "choice": choice}), client=client)
        for client, (value, n, choice) in enumerate(((1.0, 30, 2), (5.0, 7, 0), (3.0, 10, 2)))
    ]
    after = method.aggregate(server, iter(updates))
    assert torch.equal(after.tensors["models"][0], torch.full((size,), 5.0))
    assert torch.equal(after.tensors["models"][1], server.tensors["models"][1]), "nobody chose it"
    torch.testing.assert_close(after.tensors["models"][2], torch.full((size,), 1.5))
    assert after.facts == {"truth": [0, 1, 1]}
