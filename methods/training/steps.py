"""A client's local gradient steps, laid out before they are taken: client after client, or many in one computation.

The loop is the reference. Together, the networks of k clients are one stack of weights (torch.func), each with its own
batches, and an optimiser over the stack does to every row what it would do to that row alone: the results agree up to
the rounding of the sums inside a layer. It pays where one client's network is too small to fill a GPU.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from methods.base import Client, ClientError, Message, Method, Tensors, Update
from methods.training.local import build_optimiser, finite_means, run_steps


@dataclass
class Steps:
    """What a client's gradient steps need.

    Attributes:
        client: whose they are.
        network: with the weights to start from, in training mode; trained in place.
        batches: positions into the client's samples, a step each.
        inputs: of a step's positions, what the loss takes beside the network; draws from the client's streams here.
        finish: the update, from the means of the loss and other numbers, once the network is trained.
        extra: tensors that every step of this client uses.
    """

    client: Client
    network: nn.Module
    batches: Iterable[Tensor]
    inputs: Callable[[Tensor], tuple[Tensor, ...]]
    finish: Callable[[dict[str, float]], Update]
    extra: Tensors = field(default_factory=dict)


class StepMethod(Method):
    """A method whose local work is gradient steps on one network, all clients with one loss."""

    @property
    def stackable(self) -> bool:
        """Whether torch.func can compute the loss of several networks at once."""
        return True

    @abstractmethod
    def local_steps(self, message: Message, client: Client) -> Steps:
        """A client's work of one round, not yet done.

        Raises:
            ClientError: this client cannot do it.
        """

    @abstractmethod
    def step_loss(
        self, network: Callable[..., Any], inputs: tuple[Tensor, ...], extra: Mapping[str, Tensor]
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss of one step and numbers to log, scalars; with `stackable`, without looking at values."""

    def client_update(self, message: Message, client: Client) -> Update:
        """The steps of one client."""
        return self.take(self.local_steps(message, client))

    def take(self, steps: Steps) -> Update:
        """Take a client's steps one by one.

        Raises:
            ClientError: see `methods.training.local.run_steps`.
        """
        context, round = self.context, steps.client.streams.round
        optimiser = build_optimiser(steps.network.parameters(), context.local, round, context.device)

        def step(positions: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
            return self.step_loss(steps.network, steps.inputs(positions), steps.extra)

        return steps.finish(run_steps(steps.client, steps.batches, optimiser, step))

    def cohort_update(self, cohort: Sequence[tuple[Message, Client]]) -> list[Update | Exception]:
        """The steps of several clients; those with batches of one size are taken together."""
        if not self.stackable:
            return super().cohort_update(cohort)
        found: list[Update | Exception | None] = [None] * len(cohort)
        alike: dict[int, list[tuple[int, Steps, list[Tensor]]]] = {}
        for number, (message, client) in enumerate(cohort):
            try:
                steps = self.local_steps(message, client)
                batches = list(steps.batches)
                alike.setdefault(len(batches[0]) if batches else 0, []).append((number, steps, batches))
            except Exception as error:  # one client's fault is not the others'
                found[number] = error
        for group in alike.values():
            group.sort(key=lambda entry: (-len(entry[2]), entry[0]))
            means = self._together([steps for _, steps, _ in group], [batches for _, _, batches in group])
            for (number, steps, _), outcome in zip(group, means, strict=True):
                found[number] = outcome if isinstance(outcome, Exception) else steps.finish(outcome)
        return cast("list[Update | Exception]", found)

    def _together(
        self, steps: Sequence[Steps], batches: Sequence[Sequence[Tensor]]
    ) -> list[dict[str, float] | ClientError]:
        """Take the steps of clients sorted by how many they have, most first; the means of each client's numbers."""
        local, context = self.context.local, self.context
        network = steps[0].network
        rounds = steps[0].client.streams.round

        def one(state: Tensors, inputs: tuple[Tensor, ...], extra: Tensors) -> tuple[Tensor, Mapping[str, Tensor]]:
            return self.step_loss(lambda *x: functional_call(network, state, x), inputs, extra)

        stack = Stack([each.network for each in steps])
        optimiser = build_optimiser(stack.rows(), local, rounds, context.device)
        names = steps[0].extra
        extra = {name: torch.stack([each.extra[name] for each in steps]) for name in names}
        sums: list[dict[str, Tensor]] = [{} for _ in steps]
        for number in range(len(batches[0])):
            active = sum(number < len(mine) for mine in batches)
            if active < stack.size:  # who has no batch left is done
                optimiser = stack.shrink(active, optimiser, lambda p: build_optimiser(p, local, rounds, context.device))
                extra = {name: tensor[:active] for name, tensor in extra.items()}
            inputs = [each.inputs(mine[number]) for each, mine in zip(steps[:active], batches[:active], strict=True)]
            stacked = tuple(torch.stack(parts) for parts in zip(*inputs, strict=True))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")  # some losses go row by row inside
                losses, numbers = vmap(one)({**stack.parameters, **stack.buffers}, stacked, extra)
            for parameter in stack.parameters.values():
                parameter.grad = None
            losses.sum().backward()
            optimiser.step()
            for name, values in {"loss": losses, **numbers}.items():
                for total, value in zip(sums, values.detach().float(), strict=False):
                    total[name] = total[name] + value if name in total else value
        stack.shrink(0, optimiser, lambda p: optimiser)
        means: list[dict[str, float] | ClientError] = []
        for each, total, mine in zip(steps, sums, batches, strict=True):
            try:
                means.append(finite_means(each.client, total, len(mine)))
            except ClientError as error:
                means.append(error)
        return means


class Stack:
    """Weights of several networks of one kind, row by row; rows go back into their networks as they are done.

    Args:
        networks: row k is of networks[k].
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._networks = networks
        self.size = len(networks)
        self.parameters = {
            name: torch.stack([parameter.detach() for parameter in row]).requires_grad_()
            for name, row in _rows([dict(network.named_parameters()) for network in networks])
        }
        self.buffers = {
            name: torch.stack(row) for name, row in _rows([dict(network.named_buffers()) for network in networks])
        }

    def rows(self) -> Iterable[nn.Parameter]:
        """The stacked parameters, as an optimiser takes them."""
        return cast("Iterable[nn.Parameter]", self.parameters.values())

    @torch.no_grad()
    def shrink(
        self,
        size: int,
        optimiser: torch.optim.Optimizer,
        build: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    ) -> torch.optim.Optimizer:
        """Keep the first `size` rows, and give the others back to their networks.

        Args:
            size: rows to keep.
            optimiser: over the stack.
            build: a fresh optimiser over other parameters.

        Returns:
            An optimiser over the rows that are left, with their state.
        """
        for k in range(size, self.size):
            own = {**dict(self._networks[k].named_parameters()), **dict(self._networks[k].named_buffers())}
            for name, tensor in {**self.parameters, **self.buffers}.items():
                own[name].copy_(tensor[k])
        self.size = size
        if not size:
            return optimiser
        before, self.parameters = self.parameters, {}
        for name, tensor in before.items():
            self.parameters[name] = tensor[:size].clone().requires_grad_()
        self.buffers = {name: tensor[:size].clone() for name, tensor in self.buffers.items()}
        following = build(self.rows())
        for name, old in before.items():
            following.state[self.parameters[name]] = {
                key: value[:size].clone() if isinstance(value, Tensor) and value.shape == old.shape else value
                for key, value in optimiser.state.get(old, {}).items()
            }
        return following


def _rows(states: Sequence[Mapping[str, Tensor]]) -> Iterable[tuple[str, list[Tensor]]]:
    for name in states[0]:
        yield name, [state[name] for state in states]
