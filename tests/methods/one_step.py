"""One gradient step of a client, done again from the equations: what a test compares a method's update with.

Views, batches and the step are made here from the client's streams; no method's own code is asked but for its network
and its initial weights. Losses are definitions, anchor by anchor.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.views.augment import choose_recipe, normalise, two_views
from shoal.methods.contract.base import Client, Message, Update

LR = 0.1


def method_of_one_step(world: Any, name: str, **changes: Any) -> Any:
    """A method whose local work is one step of plain SGD on all samples of `client_of_one_batch`."""
    defaults = {"epochs": 1, "batch": 32, "optimiser": "sgd", "lr": LR, "momentum": 0.0, "weight_decay": 0.0}
    local = {key: value for key, value in defaults.items() if key not in changes}
    # A method may have a setting of the name `momentum`, and means its target's.
    return world.method(name, **local, **changes)


def client_of_one_batch(world: Any, round: int = 1, memory: Mapping[str, Tensor] | None = None) -> Client:
    """Twelve samples, three of each class."""
    client = world.client(0, round, dict(memory or {}), every=8)
    index = torch.arange(12)  # neighbours are of different classes
    return Client(0, world.samples(index), client.validation, client.memory, (), client.streams)


def order(client: Client) -> Tensor:
    """The samples' order in the one batch."""
    return torch.randperm(len(client.train), generator=client.streams.torch("batches"))


def views(method: Any, client: Client) -> Tensor:
    """Views a, then views b, of the one batch, as the network takes them."""
    context = method.context
    recipe = choose_recipe(context.augment, context.spec.name, context.spec.shape)
    return normalise(two_views(client.train.x(order(client)), recipe, client.streams.torch("views")))


def network_of(method: Any, tensors: Mapping[str, Tensor], prefix: str = "") -> Any:
    """The method's network with the weights given, in training mode; names may start with `prefix`."""
    network = method.network()
    network.load_state_dict({name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)})
    return network.train()


def target_of(network: Any) -> Callable[[Tensor], Tensor]:
    """Projections of a copy of the network, with its own batch statistics and without gradient."""
    slow = copy.deepcopy(network).train()

    @torch.no_grad()
    def project(x: Tensor) -> Tensor:
        return slow.instance(slow.encoder(x)).float()

    return project


def stepped(network: nn.Module, loss: Tensor, rates: Mapping[str, float] | None = None) -> dict[str, Tensor]:
    """The parameters after one step of plain SGD at `LR` (times the rate of the first part of a name)."""
    names, parameters = zip(*network.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {
        name: (p if g is None else p - LR * (rates or {}).get(name.split(".")[0], 1.0) * g).detach()
        for name, p, g in zip(names, parameters, gradients, strict=True)
    }


def assert_trained(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], prefix: str = "") -> None:
    """The parameters that a method trained are those expected."""
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[prefix + name], tensor, rtol=1e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


# --- losses by their definitions --------------------------------------------------------------------------------------


def nt_xent(a: Tensor, b: Tensor, tau: float, negatives: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """NT-Xent, anchor by anchor; row i of `negatives` marks the samples that anchor i is pushed away from."""
    a, b = (t / t.norm(dim=1, keepdim=True) for t in (a, b))
    others = ~torch.eye(len(a), dtype=torch.bool)
    means = []
    for own, other, pool in ((a, b, (negatives or (others, others))[0]), (b, a, (negatives or (others, others))[1])):
        terms = []
        for i in range(len(own)):
            rows = torch.nonzero(pool[i]).flatten()
            positive = (own[i] @ other[i] / tau).exp()
            rest = (own[rows] @ own[i] / tau).exp().sum() + (other[rows] @ own[i] / tau).exp().sum()
            terms.append(-torch.log(positive / (positive + rest)))
        means.append(sum(terms) / len(terms))
    return (means[0] + means[1]) / 2


def cluster_loss(y_a: Tensor, y_b: Tensor, tau: float = 1.0) -> Tensor:
    """NT-Xent of the columns, less the entropies of both mean assignments."""
    entropies = sum(-(y.mean(0) * y.mean(0).log()).sum() for y in (y_a, y_b))
    return nt_xent(y_a.T, y_b.T, tau) - entropies


def byol(prediction: Tensor, projection: Tensor) -> Tensor:
    """2 - 2 cos of the prediction of one view and the target's projection of the other, both ways."""
    swapped = torch.cat(projection.chunk(2)[::-1])
    cosine = (prediction * swapped).sum(1) / (prediction.norm(dim=1) * swapped.norm(dim=1))
    return 2 * (2 - 2 * cosine).mean()


def mean_over_pairs(z: Tensor) -> Tensor:
    """Log of the mean over pairs of exp(-2 |z_i - z_j|^2)."""
    pairs = [(-2 * (z[i] - z[j]).pow(2).sum()).exp() for i in range(len(z)) for j in range(i)]
    return torch.stack(pairs).mean().log()


def divergence(z: Tensor, h: Tensor, temperature: float) -> Tensor:
    """KL(softmax(z / T) || softmax(h / T)), mean over samples."""
    p, q = ((t / temperature).softmax(1) for t in (z, h))
    return (p * (p / q).log()).sum(1).mean()


@dataclass(frozen=True)
class Done:
    """What a method made of one batch: its update, the message it began from and the client."""

    method: Any
    message: Message
    client: Client
    update: Update


def one_step(
    method: Any,
    world: Any,
    round: int = 1,
    memory: Mapping[str, Tensor] | None = None,
    broadcast: Mapping[str, Tensor] | None = None,
) -> Done:
    """Let the first client of a federation of two work in a round; the weights broadcast may be given."""
    server = world.start(method, 2)
    server = replace(server, model=dict(broadcast or server.model), round=round - 1)
    client, message = client_of_one_batch(world, round, memory), method.broadcast(server, 0)
    return Done(method, message, client, method.client_update(message, client))


def perturbed(tensors: Mapping[str, Tensor], by: float = 0.3, seed: int = 5) -> dict[str, Tensor]:
    """Other weights of the same network: each parameter moved by a seeded draw, statistics scaled."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: t + by * t.abs().mean() * torch.randn(t.shape, generator=generator) if t.is_floating_point() else t
        for name, t in tensors.items()
        if not name.endswith("running_var")
    } | {name: 1.5 * t for name, t in tensors.items() if name.endswith("running_var")}


def unit(z: Tensor) -> Tensor:
    """Rows of unit length."""
    return F.normalize(z, dim=1)


def cosine_fall(progress: float) -> float:
    """A learning rate that falls from 1 to 0 along a cosine."""
    return 0.5 * (1 + math.cos(math.pi * progress))
