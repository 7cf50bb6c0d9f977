"""The networks of a client's local steps, and those of several clients as one stack of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from shoal.methods.contract.message import Tensors
from shoal.methods.training.stacked_norm import stacked_norms

Batch = tuple[Tensor, ...]
"""What the loss of one step is of, beside the networks: tensors (n, ...)."""
StepResult = tuple[Tensor, Mapping[str, Tensor]]
"""The loss of one step and numbers to log, by name: scalars."""
StepLoss = Callable[["LocalModel", Tensors, Batch, Tensors], StepResult]
"""See `shoal.methods.training.steps.GradientMethod.step_loss`."""


class LocalModel(nn.Module):
    """The network that a client trains and its companions, which are asked and not trained.

    Calling it calls the network in training. Its modules are the client's own; in a stack the same modules stand for
    one client after another, whose weights are put in their place.

    Args:
        network: in training.
        companions: by name.
    """

    def __init__(self, network: nn.Module, companions: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.network = network
        self.companions = nn.ModuleDict(companions)

    def forward(self, *x: Tensor) -> Any:
        """What the network in training answers."""
        return self.network(*x)

    def ask(self, companion: str, *x: Tensor) -> Any:
        """What a companion answers, without gradient."""
        with torch.no_grad():
            return self.companions[companion](*x)


class _InPlaceOf(nn.Module):
    """Runs a computation on a model while functional_call has put other tensors in place of the model's own."""

    def __init__(self, model: LocalModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[..., Any], *given: Any) -> Any:
        return work(self.model, *given)


class ModelStack:
    """Weights of several clients' models of one kind, row by row; rows go back into their models as they are done.

    Args:
        models: row k is of models[k].

    Attributes:
        size: rows that are left.
        parameters: of the networks in training, by name, (size, ...), with gradient.
        others: everything else by its name in `LocalModel`, (size, ...): buffers, and the companions' tensors.
        companions: the parameters of each companion by its name and theirs: the same tensors as in `others`.
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
        """The stacked parameters, as an optimiser takes them."""
        return cast("Iterable[nn.Parameter]", self.parameters.values())

    def compute(self, loss: StepLoss, batch: Batch, extra: Tensors) -> StepResult:
        """The loss (size,) and the numbers (size,) of every row.

        Args:
            loss: of one client's step.
            batch: (size, n, ...), its inputs.
            extra: (size, ...), tensors by name.
        """

        def one(parameters: Tensors, others: Tensors, batch: Batch, extra: Tensors) -> StepResult:
            state = {f"model.network.{name}": tensor for name, tensor in parameters.items()}
            state |= {f"model.{name}": tensor for name, tensor in others.items()}
            return cast("StepResult", functional_call(self._stand_in, state, (loss, parameters, batch, extra)))

        # CPUs have torch's own rule for BatchNorm, and the bits that it gives.
        there = next(iter(self.parameters.values())).device.type != "cpu"
        with stacked_norms(self._models[0]) if there else nullcontext():
            return vmap(one)(self.parameters, self.others, batch, extra)

    @torch.no_grad()
    def shrink(
        self,
        size: int,
        optimiser: torch.optim.Optimizer,
        build: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    ) -> torch.optim.Optimizer:
        """Keep the first `size` rows, and give the others back to their models.

        Args:
            size: rows to keep.
            optimiser: over the stack.
            build: a fresh optimiser over other parameters.

        Returns:
            An optimiser over the rows that are left, with their state.
        """
        for k in range(size, self.size):
            model = self._models[k]
            own = {**dict(model.network.named_parameters()), **_others(model)}
            for name, tensor in {**self.parameters, **self.others}.items():
                own[name].copy_(tensor[k])
        self.size = size
        if not size:
            return optimiser
        before, self.parameters = self.parameters, {}
        for name, tensor in before.items():
            self.parameters[name] = tensor[:size].clone().requires_grad_()
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
    """Buffers, and all tensors of the companions, by their names in the model."""
    companions = {name: p.detach() for name, p in model.named_parameters() if name.startswith("companions.")}
    return companions | dict(model.named_buffers())


def _rows(states: Sequence[Mapping[str, Tensor]]) -> Iterable[tuple[str, list[Tensor]]]:
    for name in states[0]:
        yield name, [state[name] for state in states]
