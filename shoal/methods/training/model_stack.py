"""The networks of a client's local steps, and those of several clients as one stack of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from shoal.methods.contract.message import Tensors
from shoal.methods.training.stacked_norm import stacked_norms

Batch = tuple[Tensor, ...]
"""The inputs of the loss of one step: tensors (n, ...)."""
StepResult = tuple[Tensor, Mapping[str, Tensor]]
"""The loss of one step and its metrics by name: scalars."""
StepLoss = Callable[["LocalModel", Tensors, Batch, Tensors], StepResult]
"""See `shoal.methods.training.steps.GradientMethod.step_loss`."""


class LocalModel(nn.Module):
    """The network that a client trains, and its companions, which the loss uses without training them.

    Calling it calls the trained network. Its modules are the client's own; in a stack the same modules stand for one
    client after another, with that client's weights in place of their own.

    Args:
        network: the trained network.
        companions: by name.
    """

    def __init__(self, network: nn.Module, companions: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.network = network
        self.companions = nn.ModuleDict(companions)

    def forward(self, *x: Tensor) -> Any:
        """Return the output of the trained network."""
        return self.network(*x)

    def ask(self, companion: str, *x: Tensor, part: str = "__call__") -> Any:
        """Return the output of a companion, or of the method `part` of it, without gradient."""
        with torch.no_grad():
            return getattr(self.companions[companion], part)(*x)


class _InPlaceOf(nn.Module):
    """A module that runs a computation on a model in which functional_call has replaced all tensors."""

    def __init__(self, model: LocalModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(self.model, *arguments)


class ModelStack:
    """Weights of several clients' models of one kind, a row a client; finished rows are copied back into their models.

    Args:
        models: row k holds the weights of models[k].

    Attributes:
        size: number of rows that are still trained.
        parameters: parameters of the trained networks by name, (size, ...), with gradient.
        others: all other tensors by their name in `LocalModel`, (size, ...): buffers, and those of the companions.
        companions: parameters of each companion by its name and theirs: the same tensors as in `others`.
    """

    def __init__(self, models: Sequence[LocalModel]) -> None:
        self._models = models
        self._stand_in = _InPlaceOf(models[0])
        self.size = len(models)
        self.parameters = {
            name: torch.stack([parameter.detach() for parameter in row]).requires_grad_()
            for name, row in _rows([dict(model.network.named_parameters()) for model in models])
        }
        self.others = {name: torch.stack(row) for name, row in _rows([_others(model) for model in models])}
        self.companions = self._companions()

    def _companions(self) -> dict[str, Tensors]:
        return {
            companion: {name: self.others[f"companions.{companion}.{name}"] for name, _ in network.named_parameters()}
            for companion, network in self._models[0].companions.items()
        }

    def rows(self) -> Iterable[nn.Parameter]:
        """Return the stacked parameters, for an optimiser."""
        return cast("Iterable[nn.Parameter]", self.parameters.values())

    def compute(self, loss: StepLoss, batch: Batch, extra: Tensors) -> StepResult:
        """Return the loss (size,) and the metrics (size,) of every row.

        Args:
            loss: computes one client's step.
            batch: its inputs, (size, n, ...).
            extra: tensors by name, (size, ...).
        """

        def one(parameters: Tensors, others: Tensors, batch: Batch, extra: Tensors) -> StepResult:
            state = {f"model.network.{name}": tensor for name, tensor in parameters.items()}
            state |= {f"model.{name}": tensor for name, tensor in others.items()}
            return cast("StepResult", functional_call(self._stand_in, state, (loss, parameters, batch, extra)))

        arguments = (self.parameters, self.others, batch, extra)
        if next(iter(self.parameters.values())).device.type == "cpu":
            # CPUs use torch's own rule for BatchNorm, and have its bits.
            return vmap(one)(*arguments)
        with stacked_norms(self._models[0]):
            return vmap(one)(*arguments)

    @torch.no_grad()
    def shrink(
        self,
        size: int,
        optimiser: torch.optim.Optimizer,
        build: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    ) -> torch.optim.Optimizer:
        """Keep the first `size` rows, and copy the others back into their models.

        Args:
            size: number of rows to keep.
            optimiser: over the stack.
            build: returns a fresh optimiser over other parameters.

        Returns:
            An optimiser over the kept rows, with their state.
        """
        for k in range(size, self.size):
            model = self._models[k]
            tensors = {**dict(model.network.named_parameters()), **_others(model)}
            for name, tensor in {**self.parameters, **self.others}.items():
                tensors[name].copy_(tensor[k])
        self.size = size
        if not size:
            return optimiser
        before = self.parameters
        self.parameters = {name: tensor[:size].clone().requires_grad_() for name, tensor in before.items()}
        self.others = {name: tensor[:size].clone() for name, tensor in self.others.items()}
        self.companions = self._companions()
        following = build(self.rows())
        for name, old in before.items():
            following.state[self.parameters[name]] = {
                key: value[:size].clone() if isinstance(value, Tensor) and value.shape == old.shape else value
                for key, value in optimiser.state.get(old, {}).items()
            }
        return following


def _others(model: LocalModel) -> Tensors:
    """Return buffers, and all tensors of the companions, by their names in the model."""
    companions = {name: p.detach() for name, p in model.named_parameters() if name.startswith("companions.")}
    return companions | dict(model.named_buffers())


def _rows(states: Sequence[Mapping[str, Tensor]]) -> Iterable[tuple[str, list[Tensor]]]:
    for name in states[0]:
        yield name, [state[name] for state in states]
