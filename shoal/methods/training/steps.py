"""A client's local gradient steps, laid out before they are taken: client after client, or many in one computation.

A method says what its clients' steps are (`GradientMethod.local_steps`) and what the loss of one step is
(`GradientMethod.step_loss`). The loop over one client is the reference. Together, the networks of k clients are one
stack of weights (torch.func), each with its own batches, and an optimiser over the stack does to every row what it
would do to that row alone: the results agree up to the rounding of the sums inside a layer. It pays where one client's
network is too small to fill a GPU.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from shoal.methods.contract.base import Client, ClientError, Method, Update
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.training.batch_statistics import has_batch_norm
from shoal.methods.training.kept_steps import StepKeeper, StepRules
from shoal.methods.training.local import build_optimiser, finite_means, run_steps
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch, LocalModel, ModelStack, StepResult
from shoal.methods.training.optimiser_state import (
    optimiser_tensors,
    restore_optimiser,
    restore_rows,
    row_tensors,
    steps_before,
)
from shoal.methods.training.proximal import anchors, squared_distance


class GradientMethod(Method):
    """A method whose local work is gradient steps, all clients with one loss: it can be compiled and batched.

    To override: `local_steps` and `step_loss`; `after_step` where companions follow the network; `optimiser` where the
    settings under `local` do not say which; `stackable` where several networks cannot be computed at once.
    """

    proximal = True

    @property
    def stackable(self) -> bool:
        """Whether torch.func can compute the loss of several networks at once."""
        return True

    @property
    def capturable(self) -> bool:
        """Whether a step can be a CUDA graph: it looks at no value and has the same shapes whatever the batch."""
        return self.stackable

    @abstractmethod
    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """A client's work of one round, not yet done.

        Raises:
            ClientError: this client cannot do it.
        """

    @abstractmethod
    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """The loss of one step and numbers to log, scalars; with `stackable`, without looking at values.

        Args:
            model: call it for the answer of the network in training; `model.ask` asks a companion.
            parameters: of the network in training, by name: what a proximal term is of.
            batch: what `LocalSteps.inputs` gave.
            extra: `LocalSteps.extra`.
        """

    def held_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """`step_loss`, and with `local.proximal` FedProx's term; arguments as of `step_loss`."""
        loss, numbers = self.step_loss(model, parameters, batch, extra)
        mu = self.context.local.proximal
        if not mu:
            return loss, numbers
        distance = squared_distance(parameters, extra)
        return loss + mu / 2 * distance, {**numbers, "proximal": distance.detach()}

    def held(self, steps: LocalSteps) -> LocalSteps:
        """A client's steps with what FedProx's term measures from, where `local.proximal` asks for it."""
        if not self.context.local.proximal:
            return steps
        return replace(steps, extra={**steps.extra, **anchors(steps.network)})

    def after_step(self, parameters: Tensors, companions: dict[str, Tensors]) -> None:
        """What follows a step of the optimiser: by default nothing.

        Only operations element by element and in place: the tensors are one client's, or stacks of several clients'.

        Args:
            parameters: of the network in training, by name.
            companions: the parameters of each companion, by its name and theirs.
        """

    def optimiser(self, parameters: Iterable[nn.Parameter], round: int) -> torch.optim.Optimizer:
        """A fresh optimiser for round `round` (1-based): as the settings under `local` say."""
        c = self.context
        return build_optimiser(parameters, c.local, round, c.device, capturable=self.captures)

    def client_update(self, message: Message, client: Client) -> Update:
        """The steps of one client."""
        return self.take(self.local_steps(message, client))

    @property
    def captures(self) -> bool:
        """Whether steps are captured in this run: where it is asked for, and they can be."""
        return self.context.graphs != "off" and self.capturable

    @cached_property
    def keeper(self) -> StepKeeper:
        """The captured steps of this run's clients, as far as they were taken here."""
        return StepKeeper()

    def take(self, steps: LocalSteps) -> Update:
        """Take a client's steps one by one.

        Raises:
            ClientError: see `shoal.methods.training.local.run_steps`.
        """
        steps = self.held(steps)
        if self.captures:
            return self._take_captured(steps)
        model = LocalModel(steps.network, steps.companions)
        # Parameters are updated in place: one look-up serves all steps.
        parameters: Tensors = dict(steps.network.named_parameters())
        companions: dict[str, Tensors] = {
            name: dict(network.named_parameters()) for name, network in steps.companions.items()
        }
        optimiser = self.optimiser(steps.network.parameters(), steps.client.streams.round)
        if steps.optimiser:
            restore_optimiser(optimiser, steps.optimiser)

        def step(positions: Tensor) -> StepResult:
            return self.held_loss(model, parameters, steps.batch(positions), steps.extra)

        metrics = run_steps(
            steps.client,
            steps.batches,
            optimiser,
            step,
            after=lambda: self.after_step(parameters, companions),
        )
        return steps.finish(TakenSteps(metrics, {} if steps.optimiser is None else optimiser_tensors(optimiser)))

    def _take_captured(self, steps: LocalSteps) -> Update:
        """As `take`, by a step that was captured for this or for an earlier client."""
        round = steps.client.streams.round
        rules = StepRules(
            self.held_loss,
            self.after_step,
            lambda parameters: self.optimiser(parameters, round),
            self.context.device,
            must=self.context.graphs == "on",
            pool=self.keeper.pool,
        )
        with self.keeper.turn:
            kept = self.keeper.kept(steps, rules)
            sums, count = kept.take(steps)
            metrics = finite_means(steps.client, sums, count)
            optimiser = {} if steps.optimiser is None else optimiser_tensors(kept.optimiser)
            return steps.finish(TakenSteps(metrics, optimiser))

    def cohort_update(self, cohort: Sequence[tuple[Message, Client]]) -> list[Update | Exception]:
        """The steps of several clients; those whose steps are of one kind are taken together."""
        if not self.stackable:
            return super().cohort_update(cohort)
        found: list[Update | Exception | None] = [None] * len(cohort)
        alike: dict[Hashable, list[tuple[int, LocalSteps, list[Tensor]]]] = {}
        for number, (message, client) in enumerate(cohort):
            try:
                steps = self.held(self.local_steps(message, client))
                batches = list(steps.batches)
                alike.setdefault(_kind(steps, batches), []).append((number, steps, batches))
            except Exception as error:  # one client's fault is not the others'
                found[number] = error
        for group in alike.values():
            if not self._computable_together(group[0][1].network):
                for number, steps, batches in group:
                    try:
                        found[number] = self.take(replace(steps, batches=batches))
                    except Exception as error:
                        found[number] = error
                continue
            group.sort(key=lambda entry: (-len(entry[2]), entry[0]))
            outcomes = self._take_together([steps for _, steps, _ in group], [batches for _, _, batches in group])
            for (number, steps, _), outcome in zip(group, outcomes, strict=True):
                found[number] = outcome if isinstance(outcome, Exception) else steps.finish(outcome)
        return cast("list[Update | Exception]", found)

    def _computable_together(self, network: nn.Module) -> bool:
        """Whether torch has what a stack of this network asks for: on the CPU not BatchNorm without weights in bf16."""
        context = self.context
        return not (context.precision == "bf16" and context.device.type == "cpu" and has_batch_norm(network))

    def _take_together(
        self, steps: Sequence[LocalSteps], batches: Sequence[Sequence[Tensor]]
    ) -> list[TakenSteps | ClientError]:
        """Take the steps of clients sorted by how many they have, most first; what became of each client's."""
        round = steps[0].client.streams.round
        stack = ModelStack([LocalModel(each.network, each.companions) for each in steps])
        optimiser = self.optimiser(stack.rows(), round)
        if steps[0].optimiser:
            restore_rows(optimiser, [each.optimiser or {} for each in steps])
        extra = {name: torch.stack([each.extra[name] for each in steps]) for name in steps[0].extra}
        sums: list[dict[str, Tensor]] = [{} for _ in steps]
        kept: list[Tensors] = [{} for _ in steps]

        def shrink(size: int) -> None:
            nonlocal optimiser, extra
            for k in range(size, stack.size):
                if steps[k].optimiser is not None:
                    kept[k] = row_tensors(optimiser, k)
            optimiser = stack.shrink(size, optimiser, lambda rows: self.optimiser(rows, round))
            extra = {name: tensor[:size] for name, tensor in extra.items()}

        for number in range(len(batches[0])):
            active = sum(number < len(mine) for mine in batches)
            if active < stack.size:  # who has no batch left is done
                shrink(active)
            inputs = [each.batch(mine[number]) for each, mine in zip(steps[:active], batches[:active], strict=True)]
            stacked = tuple(torch.stack(parts) for parts in zip(*inputs, strict=True))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")  # some losses go row by row inside
                losses, numbers = stack.compute(self.held_loss, stacked, extra)
            for parameter in stack.parameters.values():
                parameter.grad = None
            losses.sum().backward()
            optimiser.step()
            self.after_step(stack.parameters, stack.companions)
            for name, values in {"loss": losses, **numbers}.items():
                for total, value in zip(sums, values.detach().float(), strict=False):
                    total[name] = total[name] + value if name in total else value
        shrink(0)
        outcomes: list[TakenSteps | ClientError] = []
        for each, total, mine, state in zip(steps, sums, batches, kept, strict=True):
            try:
                outcomes.append(TakenSteps(finite_means(each.client, total, len(mine)), state))
            except ClientError as error:
                outcomes.append(error)
        return outcomes


def _kind(steps: LocalSteps, batches: Sequence[Tensor]) -> tuple[Any, ...]:
    """What must be equal for clients to be taken together: the shapes and the modes of the computation."""
    sizes = tuple(map(len, batches))
    return (
        # Batches of one size may be of any number; where the last of an epoch is smaller, they must match step by step.
        sizes[:1] if len(set(sizes)) < 2 else sizes,
        tuple((name, network.training) for name, network in steps.companions.items()),
        tuple((name, tensor.shape) for name, tensor in steps.extra.items()),
        None if steps.optimiser is None else steps_before(steps.optimiser),
        steps.alike,
    )
