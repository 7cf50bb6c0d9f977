"""Copies of networks: the same answers, and nothing shared that training or loading changes."""

import copy

import pytest
import torch
from torch import nn

from shoal.models.encoders import ENCODERS, build_encoder
from shoal.models.heads import ClusterNet
from shoal.models.network_copies import copy_network
from shoal.models.normalising_flows import build_flow


def network_of(name):
    torch.manual_seed(0)
    if name == "real-nvp":
        return build_flow("cycle", (1, 8, 8), width=4, blocks=1), torch.rand(3, 1, 8, 8)
    shape = {"mlp": (20,), "series-conv": (2, 24)}.get(name, (3, 32, 32))
    return ClusterNet(build_encoder(name, shape), 10), torch.rand(3, *shape)


@pytest.mark.parametrize("name", [*ENCODERS, "real-nvp"])
def test_a_copy_answers_alike_and_shares_nothing(name):
    network, x = network_of(name)
    made, deep = copy_network(network), copy.deepcopy(network)
    assert type(made) is type(network)
    assert str(made) == str(network)
    for one, other in zip(network.state_dict().items(), made.state_dict().items(), strict=True):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1])
        assert one[1].data_ptr() != other[1].data_ptr() or not one[1].numel()
        assert one[1].stride() == other[1].stride()
    flat = lambda found: [t for part in found for t in (part if isinstance(part, tuple) else (part,))]  # noqa: E731
    answers = [each.eval()(x) for each in (network, made, deep)]
    for a, b, c in zip(*(flat(a if isinstance(a, tuple) else (a,)) for a in answers), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(b, c)
    before = {k: t.clone() for k, t in network.state_dict().items()}
    made.train()
    assert not network.training
    with torch.no_grad():
        for tensor in made.state_dict().values():
            tensor.add_(1)
    assert all(torch.equal(before[k], t) for k, t in network.state_dict().items())


def test_what_is_one_tensor_stays_one_and_gradients_are_asked_for_as_before():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    first.bias.requires_grad_(False)
    made = copy_network(nn.Sequential(first, second, first))
    assert made[0].weight is made[1].weight
    assert made[0] is made[2]
    assert not made[0].bias.requires_grad
    assert made[0].weight.requires_grad
    assert [name for name, _ in made.named_parameters()] == ["0.weight", "0.bias", "1.bias"]


def test_buffers_plain_tensors_and_lists_of_a_layer_are_its_own():
    layer = nn.BatchNorm1d(2)
    layer.register_buffer("hidden", torch.zeros(1), persistent=False)
    layer.tensor, layer.listed = torch.zeros(1), [1]
    made = copy_network(layer)
    made.tensor.add_(1)
    made.listed.append(2)
    made.hidden.add_(1)
    made.register_buffer("later", torch.zeros(1), persistent=False)
    assert (layer.tensor.item(), layer.listed, layer.hidden.item()) == (0, [1], 0)
    assert "later" not in layer._buffers
    assert "hidden" not in made.state_dict()
    assert "later" not in layer._non_persistent_buffers_set


def test_a_hook_added_to_a_copy_is_the_copys():
    layer = nn.Linear(2, 2)
    made = copy_network(layer)
    made.register_forward_hook(lambda *_: None)
    assert not layer._forward_hooks
