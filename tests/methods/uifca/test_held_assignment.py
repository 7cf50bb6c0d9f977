"""What a client holds is its cluster, whatever the server's model would say of the sample."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from shoal.methods.scores.assignment import assignment_of


@pytest.mark.parametrize("name", ["kfed", "ifca_flows", "uifca"])
def test_what_a_client_holds_counts_instead_of_what_is_likeliest(world, client_list, name, monkeypatch):
    """Clients are made to hold every sample in a cluster that the model would not give it."""
    method = world.method(name)
    update = method.client_update(method.broadcast(server := world.start(method), 0), world.client())
    server = method.aggregate(server, iter([replace(update, client=0)]))
    clients = client_list([world.client(0, 1, update.memory)])
    likeliest = method.predictor(server)(world.samples().x()).cluster
    wrong = (likeliest + 1) % 4
    if name == "kfed":
        clients = client_list([world.client(0, 1, {"local": torch.arange(96)})])
        server = replace(server, state={**server.state, "labels/0": wrong})
    elif name == "uifca":
        monkeypatch.setattr(method, "current_assignment", lambda *_: SimpleNamespace(cluster=wrong))
    else:
        wrong = torch.full((96,), int(wrong[0]))
        monkeypatch.setattr(method, "choice", lambda *_: int(wrong[0]))
    found = assignment_of(method, server, clients, world.evaluation())
    assert torch.equal(found.cluster[:96], wrong)
