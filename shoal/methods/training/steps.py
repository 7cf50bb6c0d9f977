"""Local gradient steps, taken client after client or for many clients in one computation.

A method defines its clients' steps (`GradientMethod.local_steps`) and the loss of one step
(`GradientMethod.step_loss`). The loop over one client's steps is the reference. In one computation, the networks of k
clients are one stack of weights (torch.func), each with its own batches, and an optimiser over the stack updates every
row as it would update that row alone: the results agree up to the rounding of the sums inside a layer. This is faster
where one client's network is too small to fill a GPU.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from shoal.methods.contract.base import Client, ClientError, Method, Update
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.training.batch_statistics import has_batch_norm
from shoal.methods.training.kept_steps import StepKeeper, StepRules
from shoal.methods.training.local import build_optimiser
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch, LocalModel, ModelStack, StepResult
from shoal.methods.training.optimiser_state import optimiser_tensors, restore_optimiser
from shoal.methods.training.proximal import anchors, squared_distance
from shoal.methods.training.shared_launches import SharedLaunches


def descend(loss: Tensor, parameters: Iterable[Tensor], optimiser: torch.optim.Optimizer) -> None:
    """Take one step of an optimiser down the gradient of a loss by its parameters."""
    for parameter in parameters:  # as `optimiser.zero_grad` does, in a tenth of the time
        parameter.grad = None
    loss.backward()
    optimiser.step()


class GradientMethod(Method):
    """A method whose local work is gradient steps with one loss for all clients, which can be batched.

    A subclass implements `local_steps` and `step_loss`. It overrides `after_step` where companions follow the network,
    `optimiser` where the section `local` does not choose it, and `stackable` where the networks of several clients
    cannot be computed at once.
    """

    local_options: ClassVar[tuple[str, ...]] = ("proximal",)

    @property
    def stackable(self) -> bool:
        """Whether torch.func can compute the loss of several networks at once, and a CUDA graph a step.

        A step then looks at no value, and its shapes follow from the batch's shape.
        """
        return True

    @abstractmethod
    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Return a client's steps of one round, to be taken.

        Raises:
            ClientError: this client cannot take any.
        """

    @abstractmethod
    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return the loss of one step and metrics to log, scalars; with `stackable`, without looking at values.

        Args:
            model: call it for the output of the trained network, and `model.ask` for that of a companion.
            parameters: parameters of the trained network, by name, for penalties on the weights.
            batch: the tensors that `LocalSteps.inputs` returned.
            extra: `LocalSteps.extra`.
        """

    def whole_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return `step_loss` plus FedProx's term, where `local.proximal` asks for it; arguments as there."""
        proximal = self.context.local.proximal
        loss, metrics = self.step_loss(model, parameters, batch, extra)
        if not proximal:
            return loss, metrics
        distance = squared_distance(parameters, extra)
        return loss + proximal / 2 * distance, {**metrics, "proximal": distance.detach()}

    def with_anchors(self, steps: LocalSteps) -> LocalSteps:
        """Return a client's steps with the initial parameters that FedProx's term needs, if `local.proximal` is set."""
        if not self.context.local.proximal:
            return steps
        return replace(steps, extra={**steps.extra, **anchors(steps.network)})

    def after_step(self, parameters: Tensors, companions: dict[str, Tensors]) -> None:
        """Update the companions after a step of the optimiser; by default do nothing.

        Use operations element by element and in place: the tensors are one client's, or stacks of several clients'.

        Args:
            parameters: parameters of the trained network, by name.
            companions: parameters of each companion, by its name and theirs.
        """

    def optimiser(self, parameters: Iterable[nn.Parameter], round: int) -> torch.optim.Optimizer:
        """Return a fresh optimiser for round `round` (1-based), by default that of the section `local`."""
        c = self.context
        return build_optimiser(parameters, c.local, round, capturable=self.captures)

    def takes_steps(self, message: Message) -> bool:
        """Return whether a message asks for gradient steps; by default each does."""
        return True

    def client_update(self, message: Message, client: Client) -> Update:
        """Take the steps of one client."""
        return self.take(self.local_steps(message, client))

    @property
    def captures(self) -> bool:
        """Whether this run captures steps as CUDA graphs."""
        return self.context.graphs != "off" and self.stackable

    @cached_property
    def keeper(self) -> StepKeeper:
        """The captured steps of the clients that were trained in this process."""
        return StepKeeper()

    def take(self, steps: LocalSteps) -> Update:
        """Take a client's steps one by one.

        Raises:
            ClientError: see `run_steps`.
        """
        steps = self.with_anchors(steps)
        if self.captures:
            return self._take_captured(steps)
        model = LocalModel(steps.network, steps.companions)
        # Parameters are updated in place, so that these dictionaries hold for all steps.
        parameters: Tensors = dict(steps.network.named_parameters())
        companions: dict[str, Tensors] = {
            name: dict(network.named_parameters()) for name, network in steps.companions.items()
        }
        optimiser = self.optimiser(steps.network.parameters(), steps.client.streams.round)
        if steps.optimiser:
            restore_optimiser(optimiser, steps.optimiser)

        launches = SharedLaunches([steps.network, *steps.companions.values()], self.context)

        def step(positions: Tensor) -> StepResult:
            with launches.together():
                return self.whole_loss(model, parameters, steps.batch(positions), steps.extra)

        def after() -> None:
            self.after_step(parameters, companions)

        once = steps.prepare(model, launches)
        metrics = run_steps(steps.client, steps.batches, optimiser, step, after, once)
        return steps.finish(TakenSteps(metrics, _kept_state(steps, optimiser)))

    def _take_captured(self, steps: LocalSteps) -> Update:
        """Take a client's steps by one that was captured for this or for an earlier client."""
        rules = self._rules(steps.client.streams.round)
        with self.keeper.lock:
            kept = self.keeper.kept(steps, rules)
            sums, count, once = kept.take(steps)
            metrics = finite_means(steps.client, sums, count, once)
            return steps.finish(TakenSteps(metrics, _kept_state(steps, kept.optimiser)))

    def _rules(self, round: int) -> StepRules:
        """Return the rules of a round's steps, which all its clients share."""
        keeper = self.keeper
        last = keeper.rules.get(round)
        if last is None:
            last = StepRules(
                self.whole_loss,
                self.after_step,
                lambda parameters: self.optimiser(parameters, round),
                self.context.device,
                required=self.context.graphs == "on",
                pool=keeper.pool,
                context=self.context,
            )
            keeper.rules = {round: last}
        return last

    def cohort_update(self, cohort: Sequence[tuple[Message, Client]]) -> list[Update | Exception]:
        """Take the steps of several clients; those whose steps are of one kind are computed together.

        Clients whose optimiser continues over rounds are trained one after another.
        """
        if not (self.stackable and all(self.takes_steps(message) for message, _ in cohort)):
            return super().cohort_update(cohort)
        outcomes: list[Update | Exception | None] = [None] * len(cohort)
        groups: dict[Hashable, list[_Work]] = {}
        for place, (message, client) in enumerate(cohort):
            try:
                steps = self.with_anchors(self.local_steps(message, client))
                batches = list(steps.batches)
                groups.setdefault(_kind(steps, batches), []).append(_Work(place, steps, batches))
            except Exception as error:  # one client's fault is not the others'
                outcomes[place] = error
        for group in groups.values():
            for place, outcome in self._take_group(group):
                outcomes[place] = outcome
        return cast("list[Update | Exception]", outcomes)

    def _take_group(self, group: list[_Work]) -> Iterator[tuple[int, Update | Exception]]:
        """Take the steps of clients of one kind; yield each client's place in the cohort and its outcome."""
        if self._computable_together(group[0].steps):
            group.sort(key=lambda work: (-len(work.batches), work.place))
            for work, taken in zip(group, self._take_together(group), strict=True):
                yield work.place, taken if isinstance(taken, Exception) else work.steps.finish(taken)
            return
        for work in group:
            try:
                yield work.place, self.take(replace(work.steps, batches=work.batches))
            except Exception as error:
                yield work.place, error

    def _computable_together(self, steps: LocalSteps) -> bool:
        """Return whether a stack of this network is trained: in bf16, CPUs lack BatchNorm without weights."""
        context = self.context
        low = context.precision == "bf16" and context.device.type == "cpu"
        return steps.optimiser is None and not (low and has_batch_norm(steps.network))

    def _take_together(self, group: Sequence[_Work]) -> list[TakenSteps | ClientError]:
        """Take the steps of clients sorted by their number of steps, largest first; return each client's outcome."""
        steps = [work.steps for work in group]
        round = steps[0].client.streams.round
        models = [LocalModel(each.network, each.companions) for each in steps]
        own_launches = SharedLaunches([], None)
        once = [each.prepare(model, own_launches) for each, model in zip(steps, models, strict=True)]
        stack = ModelStack(models)
        optimiser = self.optimiser(stack.rows(), round)
        extra = {name: torch.stack([each.extra[name] for each in steps]) for name in steps[0].extra}
        sums: list[dict[str, Tensor]] = [{} for _ in steps]

        def shrink(size: int) -> None:
            nonlocal optimiser, extra
            optimiser = stack.shrink(size, optimiser, lambda rows: self.optimiser(rows, round))
            extra = {name: tensor[:size] for name, tensor in extra.items()}

        for number in range(len(group[0].batches)):
            active = [work for work in group if number < len(work.batches)]
            if len(active) < stack.size:  # some clients have taken their last step
                shrink(len(active))
            inputs = [work.steps.batch(work.batches[number]) for work in active]
            stacked = tuple(torch.stack(parts) for parts in zip(*inputs, strict=True))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")  # vmap loops over rows in some losses
                losses, metrics = stack.compute(self.whole_loss, stacked, extra)
            descend(losses.sum(), stack.parameters.values(), optimiser)
            self.after_step(stack.parameters, stack.companions)
            _add_rows(sums, {"loss": losses, **metrics})
        shrink(0)
        return [_taken(*each) for each in zip(group, sums, once, strict=True)]


@dataclass(frozen=True)
class _Work:
    """The steps of one client of a cohort: its place there, its steps, and their batches."""

    place: int
    steps: LocalSteps
    batches: list[Tensor]


def _add_rows(sums: Sequence[dict[str, Tensor]], values: Mapping[str, Tensor]) -> None:
    """Add row k of each value to the sums of client k; clients beyond the last row have no more steps."""
    for name, rows in values.items():
        for total, value in zip(sums, rows.detach().float(), strict=False):
            total[name] = total[name] + value if name in total else value


def _taken(work: _Work, sums: Mapping[str, Tensor], once: Mapping[str, Tensor]) -> TakenSteps | ClientError:
    try:
        return TakenSteps(finite_means(work.steps.client, sums, len(work.batches), once), {})
    except ClientError as error:
        return error


def _kept_state(steps: LocalSteps, optimiser: torch.optim.Optimizer) -> Tensors:
    """Return the optimiser's state where it continues over rounds."""
    if steps.optimiser is None:
        return {}
    return optimiser_tensors(optimiser)


def _kind(steps: LocalSteps, batches: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return what must be equal for clients to be computed together: the shapes and the modes of the computation."""
    sizes = tuple(map(len, batches))
    return (
        # Clients may differ in their number of batches of one size; where sizes differ, they must match step by step.
        sizes[:1] if len(set(sizes)) < 2 else sizes,
        tuple((name, network.training) for name, network in steps.companions.items()),
        tuple((name, tensor.shape) for name, tensor in steps.extra.items()),
        steps.optimiser is None,
        steps.alike,
    )


def run_steps(
    client: Client,
    steps: Iterable[Tensor],
    optimiser: torch.optim.Optimizer,
    step: Callable[[Tensor], tuple[Tensor, Mapping[str, Tensor]]],
    after: Callable[[], None] | None = None,
    once: Mapping[str, Tensor] | None = None,
) -> dict[str, float]:
    """Minimise `step(positions) -> (loss, metrics)` over the batches; return the means of loss and metrics.

    Args:
        client: named in errors.
        steps: batches of positions.
        optimiser: over the parameters to train.
        step: returns the loss of one batch.
        after: called after each optimiser step, to move a momentum target after its network.
        once: metrics of the round, returned as they are.

    Raises:
        ClientError: the loss is not finite.
    """
    names: tuple[str, ...] = ()
    sums = torch.empty(0)
    count = 0
    trained = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for positions in steps:
        loss, metrics = step(positions)
        descend(loss, trained, optimiser)
        if after is not None:
            after()
        values = {"loss": loss, **metrics}
        row = torch.stack([value.detach().float() for value in values.values()])
        sums = sums.add_(row) if count else row
        names = tuple(values)
        count += 1
    return finite_means(client, dict(zip(names, sums.unbind(), strict=True)), count, once)


def finite_means(
    client: Client, sums: Mapping[str, Tensor], count: int, once: Mapping[str, Tensor] | None = None
) -> dict[str, float]:
    """Return the means of a client's metrics, from their sums over `count` steps, and metrics `once` as they are.

    Raises:
        ClientError: a mean is not finite.
    """
    once = once or {}
    values = [*sums.values(), *once.values()]
    numbers = torch.stack(values).tolist() if values else []
    means = {name: total / count for name, total in zip(sums, numbers, strict=False)}
    if not all(map(math.isfinite, means.values())):
        raise ClientError(
            f"client {client.id}: the loss is not finite in round {client.streams.round} ({means}); lower local.lr "
            "or check its data"
        )
    return means | dict(zip(once, numbers[len(sums) :], strict=True))
