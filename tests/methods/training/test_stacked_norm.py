"""BatchNorm of a stack of networks: each row as its own network has it, with gradients and statistics."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from shoal.methods.contract.context import MethodError
from shoal.methods.training.stacked_norm import stacked_norms

ROWS = 3


def networks(*, training: bool) -> list[nn.Module]:
    made = []
    for row in range(ROWS):
        torch.manual_seed(row)
        network = nn.Sequential(
            nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5)
        )
        for norm in (network[1], network[4]):
            for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                nn.init.uniform_(tensor.detach(), 0.5, 2.0)
        made.append(network.to(memory_format=torch.channels_last).train(training))
    return made


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("low", [False, True])
def test_each_row_is_its_own_network(training: bool, low: bool) -> None:
    single_networks, owners = networks(training=training), networks(training=training)
    x = torch.randn(ROWS, 6, 2, 6, 6)
    parameters = {
        name: torch.stack([dict(each.named_parameters())[name].detach() for each in owners]).requires_grad_()
        for name, _ in owners[0].named_parameters()
    }
    buffers = {
        name: torch.stack([dict(each.named_buffers())[name] for each in owners])
        for name, _ in owners[0].named_buffers()
    }

    def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            return functional_call(owners[0], parameters | buffers, (x,)).float()

    with stacked_norms(owners[0]):
        found = vmap(one)(parameters, buffers, x)
    found.square().sum().backward()
    close = {"rtol": 0.05, "atol": 0.5} if low else {"rtol": 1e-4, "atol": 1e-4}
    for row, network in enumerate(single_networks):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            expected = network(x[row]).float()
        torch.testing.assert_close(found[row], expected, **close)
        expected.square().sum().backward()
        for name, parameter in network.named_parameters():
            if not low:
                torch.testing.assert_close(parameters[name].grad[row], parameter.grad, rtol=1e-3, atol=1e-3)
        for name, buffer in network.named_buffers():
            torch.testing.assert_close(buffers[name][row], buffer, rtol=0.02 if low else 1e-5, atol=1e-2)
    assert buffers["1.running_mean"].dtype == torch.float32


def test_outside_it_the_modules_are_their_own() -> None:
    network = networks(training=False)[0]
    with stacked_norms(network):
        assert "forward" in vars(network[1])
    assert "forward" not in vars(network[1])


def test_a_mean_over_all_batches_is_refused() -> None:
    network = nn.BatchNorm1d(3, momentum=None)
    state = {name: tensor.detach()[None] for name, tensor in network.state_dict().items()}
    with stacked_norms(network), pytest.raises(MethodError, match="momentum None"):
        vmap(lambda state, x: functional_call(network, state, (x,)))(state, torch.ones(1, 4, 3))
