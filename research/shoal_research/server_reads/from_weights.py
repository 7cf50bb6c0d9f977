"""What a server reads of rows from the weights that a client sends: methods that average networks, first round.

The attacker knows what a server knows: the weights that it sent, the client's number of rows, and the run's seed, from
which the order of batches and the noise of views follow. There are two attacks:

- **By span**, where steps are SGD. The gradient of the first layer is a sum of products with the views that enter it:
  they span the rows of this layer's change (used of texts by Petrov et al. 2024), and while they are fewer than the
  columns this tells directions to which all of them are orthogonal. Views are known mixtures of rows, so that the rows
  solve linear equations, up to the scale and place of each column, which follow from BatchNorm's statistics. Least
  squares end it.
- **By matching** (Zhu et al. 2019; Geiping et al. 2020), elsewhere: rows are sought from which the steps lead to the
  weights and statistics that were sent, by L-BFGS through the steps.

The quotient of the gradients of a weight and its bias (Phong et al. 2017) gives no row here: the first layer has no
bias.

Symbols in shapes: n rows, k columns, s steps, v = 2n views in a step, e directions outside the span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import least_squares, minimize
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.methods.contract.base import Client, Method
from shoal.methods.contract.context import LocalSettings
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.training.local_steps import LocalSteps
from shoal.methods.training.model_stack import LocalModel
from shoal.methods.training.steps import GradientMethod
from shoal.review.served.server_view import Exchange

FIRST_NORM = "encoder.layers.0"
FIRST_LAYER = "encoder.layers.1"
"""Of `VectorMLP`: BatchNorm of the columns, and the linear layer after it."""
ROUNDING = 1e-7
"""Relative error of a float32 number."""
SPAN_ERROR = 1e-5
"""Error of a direction of the span, by which the statistics are weighed against it."""
MOMENTUM = 0.1
"""Weight of a new batch in BatchNorm's statistics."""
EPSILON = 1e-5
"""Added to variances by BatchNorm."""
STARTS = 6
"""Of the attack by span."""
MATCHING_STARTS = 2
MOST_STEPS = 60
"""Of least squares, and of L-BFGS, from one start."""
FITS = 1e-6
"""A sum of squared residuals below which no further start is tried."""


class StepLoss(nn.Module):
    """The loss of a client's step, as a module whose parameters can be replaced."""

    def __init__(self, method: GradientMethod, steps: LocalSteps) -> None:
        super().__init__()
        self.model = LocalModel(steps.network, steps.companions)
        self._method = method
        self._extra = steps.extra

    def forward(self, parameters: Tensors, batch: tuple[Tensor, ...]) -> Tensor:
        """Return the loss of a step from parameters of the network by name, and its batch."""
        loss, _ = self._method.whole_loss(self.model, parameters, batch, self._extra)
        return loss

    def gradient(self, parameters: Tensors, batch: tuple[Tensor, ...]) -> Tensors:
        """Return the gradient by name, which can be differentiated again."""
        state = {f"model.network.{name}": tensor for name, tensor in parameters.items()}
        loss = functional_call(self, state, (parameters, batch))
        slopes = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        return dict(zip(parameters, slopes, strict=True))


class SmoothOptimiser:
    """The steps of SGD or Adam as functions of the gradients, with slopes by these.

    Args:
        local: names the optimiser.
    """

    def __init__(self, local: LocalSettings) -> None:
        self._local = local
        self._first: dict[str, Any] = {}
        self._second: dict[str, Any] = {}
        self._count = 0

    def step(self, parameters: Tensors, gradient: Tensors) -> Tensors:
        """Return the parameters after a step."""
        local = self._local
        self._count += 1
        moved = {}
        for name, weight in parameters.items():
            slope = gradient[name] + local.weight_decay * weight
            if local.optimiser == "sgd":
                self._first[name] = local.momentum * self._first.get(name, 0.0) + slope
                direction = self._first[name]
            else:
                self._first[name] = 0.9 * self._first.get(name, 0.0) + 0.1 * slope
                self._second[name] = 0.999 * self._second.get(name, 0.0) + 0.001 * slope.square()
                root = (self._second[name] / (1 - 0.999**self._count) + 1e-16).sqrt()
                direction = self._first[name] / (1 - 0.9**self._count) / root
            moved[name] = weight - local.lr * direction
        return moved


@contextmanager
def norm_inputs(network: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Keep the input of each BatchNorm of a network, by name, when it is called."""
    inputs: dict[str, Tensor] = {}

    def keep(_: nn.Module, arguments: tuple[Tensor, ...], name: str) -> None:
        inputs[name] = arguments[0]

    norms = [(name, part) for name, part in network.named_modules() if isinstance(part, _BatchNorm)]
    hooks = [part.register_forward_pre_hook(partial(keep, name=name)) for name, part in norms]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class Sender:
    """What a server has of one client.

    Attributes:
        method: of the run.
        message: that the client was sent.
        client: its number of rows and its streams; its samples are not read.
        sent: what it answered, float64.
    """

    method: GradientMethod
    message: Message
    client: Client
    sent: Tensors

    @classmethod
    def of(cls, method: Method, exchange: Exchange) -> Sender:
        """Return what the server has of an exchange in a round."""
        assert isinstance(method, GradientMethod)
        place = torch.zeros_like(exchange.client.train.index)  # of any sample: only their number counts
        hollow = replace(exchange.client, train=replace(exchange.client.train, index=place, owner=None, place=None))
        sent = {name: one.double() for name, one in exchange.left.tensors.items() if one.is_floating_point()}
        return cls(method, exchange.message, hollow, sent)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return len(self.client.train), len(self.sent[f"{FIRST_NORM}.running_mean"])

    def views(self, rows: Tensor) -> Tensor:
        """Return what the network would see of rows (n, k) in each step, (s, v, k)."""
        steps = self.method.local_steps(self.message, self.client)
        return torch.stack([steps.inputs((rows[positions],))[0] for positions in steps.batches])

    def answer(self, rows: Tensor) -> Tensors:
        """Return the parameters and statistics that the client would send if it had these rows (n, k)."""
        steps = self.method.local_steps(self.message, self.client)
        network = steps.network
        loss = StepLoss(self.method, steps)
        parameters = {name: one.detach().clone().requires_grad_() for name, one in network.named_parameters()}
        statistics = {name: one.clone() for name, one in network.named_buffers() if one.is_floating_point()}
        companions: dict[str, Tensors] = {name: dict(one.named_parameters()) for name, one in steps.companions.items()}
        optimiser = SmoothOptimiser(self.method.context.local)
        with norm_inputs(network) as inputs:
            for positions in steps.batches:
                gradient = loss.gradient(parameters, steps.inputs((rows[positions],)))
                parameters = optimiser.step(parameters, gradient)
                self.method.after_step({name: one.detach() for name, one in parameters.items()}, companions)
                for name, x in inputs.items():
                    columns = x.transpose(0, 1).flatten(1)
                    for part, value in (("mean", columns.mean(1)), ("var", columns.var(1))):
                        kept = statistics[f"{name}.running_{part}"]
                        statistics[f"{name}.running_{part}"] = kept + MOMENTUM * (value - kept)
        return parameters | statistics


class Columns(NamedTuple):
    """Mean and variance of a client's views, as BatchNorm's statistics tell them after s steps.

    Attributes:
        shares: of each step in the statistics, (s,).
        mean, variance: (k,).
        mean_error, variance_error: what rounding leaves open, (k,).
    """

    shares: Tensor
    mean: Tensor
    variance: Tensor
    mean_error: Tensor
    variance_error: Tensor

    @classmethod
    def told(cls, sender: Sender) -> Columns:
        """Return what a client's message tells."""
        steps = len(list(sender.method.local_steps(sender.message, sender.client).batches))
        kept = (1 - MOMENTUM) ** steps
        ages = torch.arange(steps - 1, -1, -1, dtype=torch.float64)
        shares = MOMENTUM * (1 - MOMENTUM) ** ages / (1 - kept)
        mean, variance = (sender.sent[f"{FIRST_NORM}.running_{part}"] for part in ("mean", "var"))
        errors = [ROUNDING * one.abs() / (1 - kept) for one in (mean, variance.clamp(min=kept))]
        return cls(shares, mean / (1 - kept), (variance - kept) / (1 - kept), errors[0].clamp(min=1e-30), errors[1])

    def deviation(self, typical: np.ndarray) -> Tensor:
        """Return the deviation of each column (k,), the typical one of the table where rounding hides it."""
        known = self.variance > 10 * self.variance_error
        return torch.where(known, self.variance.clamp(min=0), torch.as_tensor(typical).square()).sqrt()


class SpanReading:
    """The attack by span.

    Args:
        sender: the client.
        typical: deviation of each column of such tables, (k,).
    """

    def __init__(self, sender: Sender, typical: np.ndarray) -> None:
        self._sender = sender
        self._columns = Columns.told(sender)
        self._deviation = self._columns.deviation(typical)
        self._outside = outside(sender, len(self._columns.shares))

    @staticmethod
    def possible(sender: Sender) -> bool:
        """Return whether steps are SGD, and the views fewer than the columns: centred, one less than there are."""
        rows, columns = sender.shape
        steps = len(Columns.told(sender).shares)
        return sender.method.context.local.optimiser == "sgd" and steps * (2 * rows - 1) < columns

    def read(self, seed: int) -> np.ndarray:
        """Return the rows (n, k) that fit best, of several starts."""
        generator = np.random.default_rng(seed)
        best = (np.inf, np.empty(self._sender.shape))
        scales = torch.ones_like(self._mixtures()[1][:, :1])
        for start in range(STARTS):
            scaled = (-1) ** start * self._start(generator, scales)
            for precise in (False, True):
                mirrored = self._mirrored(scaled)
                cost, scaled = squares_fitted(partial(self._residuals, precise=precise), mirrored)
            best = min(best, (cost, scaled), key=lambda one: one[0])
            if cost < FITS:
                break
            scales = self._views(torch.as_tensor(scaled)).std(1, keepdim=True)
        found: np.ndarray = (self._columns.mean + self._deviation * torch.as_tensor(best[1])).numpy()
        return found

    def _start(self, generator: np.random.Generator, scales: Tensor) -> np.ndarray:
        """Return a solution of the linear equations (n, k), each column of mean 0 and deviation 1, up to one sign.

        Args:
            generator: chooses among solutions.
            scales: of the views of each step, by which BatchNorm divides, (s, 1, k).
        """
        n, k = self._sender.shape
        mixture, jitter = self._mixtures()
        centred = torch.linalg.qr(torch.eye(n, dtype=torch.float64)[:, 1:] - 1 / n)[0]
        unknown = torch.cat((mixture @ centred, jitter[..., None]), -1)  # of the rows, and their deviation
        unknown = (unknown - unknown.mean(1, keepdim=True)) / scales[..., None]
        equations = torch.einsum("svku,ke->sveku", unknown, self._outside).reshape(-1, k * n)
        _, sizes, directions = torch.linalg.svd(equations, full_matrices=True)
        rank = min(int((sizes > 1e-4 * sizes[0]).sum()), k * n - 1)
        drawn = torch.as_tensor(generator.standard_normal(k * n - rank)) @ directions[rank:]
        drawn = drawn.reshape(k, n)
        rows = (drawn[:, :-1] @ centred.T * drawn[:, -1].sum().sign()).T
        start: np.ndarray = (rows / rows.std(0, correction=0)).numpy()
        return start

    def _mixtures(self) -> tuple[Tensor, Tensor]:
        """Return the part of each row in each view, (s, v, k, n), and its noise in deviations of rows, (s, v, k)."""
        n, k = self._sender.shape
        alone = [self._sender.views(one[:, None].expand(n, k)) for one in torch.eye(n, dtype=torch.float64)]
        together = torch.stack(alone, -1)
        noise = (together.sum(-1) - 1) / (n - 1) ** 0.5  # the parts add up to 1, and a row alone deviates so much
        return together - noise[..., None] * (n - 1) ** 0.5 / n, noise

    def _mirrored(self, scaled: np.ndarray) -> np.ndarray:
        """Return rows (n, k) after mirroring each column that then fits better: no small change comes across."""
        rows = torch.as_tensor(scaled)
        cost = self._residuals(rows, precise=False).square().sum()
        for column in 2 * list(range(rows.shape[1])):
            other = rows.clone()
            other[:, column] *= -1
            changed = self._residuals(other, precise=False).square().sum()
            if changed < cost:
                rows = other
                cost = changed
        mirrored: np.ndarray = rows.numpy()
        return mirrored

    def _views(self, scaled: Tensor) -> Tensor:
        """Return the views (s, v, k) of rows in deviations from the mean (n, k)."""
        return self._sender.views(self._columns.mean + self._deviation * scaled)

    def _residuals(self, scaled: Tensor, precise: bool) -> Tensor:
        """Return how far rows are from span and statistics, (r,); `precise`: in units of what rounding hides."""
        columns = self._columns
        views = self._views(scaled)
        mean = views.mean(1, keepdim=True)
        seen = (views - mean) / (views.var(1, keepdim=True, correction=0) + EPSILON).sqrt()
        mean_off = columns.shares @ mean[:, 0] - columns.mean
        variance_off = columns.shares @ views.var(1) - columns.variance
        units = (self._deviation, columns.variance.clamp(min=0) + 3 * columns.variance_error)
        if precise:
            units = (columns.mean_error / SPAN_ERROR, columns.variance_error / SPAN_ERROR)
        return torch.cat(((seen @ self._outside).flatten(), mean_off / units[0], variance_off / units[1]))


def kept_share(sender: Sender, steps: int) -> float:
    """Return what weight decay leaves, after some steps, of the weights that were sent, which lie in no span."""
    local = sender.method.context.local
    kept = 1.0
    velocity = 0.0
    for _ in range(steps):
        velocity = local.momentum * velocity + local.weight_decay * kept
        kept -= local.lr * velocity
    return kept


def outside(sender: Sender, steps: int) -> Tensor:
    """Return directions (k, e) to which all views of some steps are orthogonal."""
    name = f"{FIRST_LAYER}.weight"
    change = sender.sent[name] - kept_share(sender, steps) * sender.message.tensors[name].double()
    rows, _ = sender.shape
    directions: Tensor = torch.linalg.svd(change, full_matrices=True)[2]
    return directions[steps * (2 * rows - 1) :].T


def squares_fitted(residuals: Callable[[Tensor], Tensor], start: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the least sum of squares near a start (n, k), halved, and where it lies (n, k)."""

    def value(flat: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return residuals(torch.as_tensor(flat.reshape(start.shape))).numpy()

    def slopes(flat: np.ndarray) -> np.ndarray:
        at = torch.tensor(flat.reshape(start.shape), requires_grad=True)
        found = residuals(at)
        each = torch.eye(len(found), dtype=found.dtype)
        (by_residual,) = torch.autograd.grad(found, at, each, is_grads_batched=True)
        return by_residual.flatten(1).numpy()

    options = {"max_nfev": MOST_STEPS, "xtol": 1e-12, "ftol": 1e-12, "gtol": 1e-14}
    fit = least_squares(value, start.ravel(), slopes, **options)
    return float(fit.cost), fit.x.reshape(start.shape)


def rows_matched(sender: Sender, typical: np.ndarray, seed: int) -> np.ndarray:
    """Return rows (n, k) from which the client's steps lead nearest to its message, of several starts."""
    columns = Columns.told(sender)
    deviation = columns.deviation(typical)
    before = {name: sender.message.tensors[name].double() for name in sender.sent}
    sizes = {name: float((sender.sent[name] - one).square().sum()) for name, one in before.items()}
    told = [name for name, size in sizes.items() if size > 1e-12]

    def off(flat: np.ndarray) -> tuple[float, np.ndarray]:
        scaled = torch.tensor(flat.reshape(sender.shape), requires_grad=True)
        answer = sender.answer((columns.mean + deviation * scaled).float())
        parts = [(answer[name].double() - sender.sent[name]).square().sum() / sizes[name] for name in told]
        total = torch.stack(parts).mean()
        (slope,) = torch.autograd.grad(total, scaled)
        return float(total.detach()), slope.numpy().ravel()

    generator = np.random.default_rng(seed)
    starts = [generator.standard_normal(sender.shape).ravel() for _ in range(MATCHING_STARTS)]
    options = {"maxiter": MOST_STEPS, "maxfun": MOST_STEPS}
    fits = [minimize(off, start, jac=True, method="L-BFGS-B", options=options) for start in starts]
    best = min(fits, key=lambda fit: float(fit.fun)).x.reshape(sender.shape)
    found: np.ndarray = (columns.mean + deviation * torch.as_tensor(best)).numpy()
    return found


def network_rows(method: Method, exchange: Exchange, typical: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return the rows (n, k) that a server takes for a client's, from what was exchanged in a round.

    Args:
        method: of the run.
        exchange: with the client, whose samples are not read.
        typical: deviation of each column of such tables, (k,).
        seed: of the starts.
    """
    sender = Sender.of(method, exchange)
    if SpanReading.possible(sender):
        return SpanReading(sender, typical).read(seed)
    return rows_matched(sender, typical, seed)
