"""Base of UIFCA and IFCA on flows: K initial flows, local training, and the losses of points under each flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.core.setting import setting
from shoal.core.streams import Streams
from shoal.data.views.view import Samples
from shoal.methods.averaging.vectors import flatten, load_vector, parameter_count
from shoal.methods.contract.base import Client, Method, Server
from shoal.methods.contract.context import Context, LocalSettings, MethodError
from shoal.methods.contract.prediction import Prediction
from shoal.methods.training.local import build_optimiser, seeded
from shoal.methods.training.steps import descend
from shoal.models.normalising_flows import Flow, build_flow

FORWARD_POINTS = 1000
"""Points in one pass where flows are evaluated without training."""
FlowName = Literal["auto", "affine", "tabular", "cycle", "dense_cycle"]


@dataclass(frozen=True)
class FlowSettings:
    """The architecture of the normalising flows, and the length of their training."""

    steps: int = setting(100, "number of local steps M in each communication round", ge=1)
    flow: FlowName = setting(
        "auto",
        "kind of normalising flow; affine or tabular for vectors, cycle for images; dense_cycle is the "
        "cycle flow with linear layers in place of convolutions, which suits small images on a CPU; auto: affine for "
        "vectors, cycle for images",
    )
    width: int = setting(
        32, "number of filters in a flow's networks; for tabular and dense flows a quarter of the hidden width", ge=1
    )
    blocks: int = setting(2, "number of residual blocks in a flow's convolutional networks", ge=1)
    spread: float = setting(0.001, "standard deviation of the K initial flows around their common start", ge=0)
    background: bool = setting(False, "for images: replace pixels below 0.01 of the range by uniform noise")


class FlowMethod(Method):
    """Base of methods whose server holds K normalising flows as rows of one tensor (K, p)."""

    kinds = ("vector", "image")
    local_defaults = LocalSettings(epochs=1, batch=64, optimiser="sgd", lr=1e-4)  # from the paper, for images
    affine_defaults = LocalSettings(epochs=1, batch=100, optimiser="sgd", lr=1e-5)
    """Measured: affine flows find Gaussian points where the rate times the steps of a cluster round is 0.03 to 0.1."""
    settings: Any
    """`FlowSettings`."""

    def flow(self) -> Flow:
        """Build a flow with the run's common start."""
        network = seeded(self.build, self.context, "flow", self.network_cache)
        assert isinstance(network, Flow)
        return network

    def build(self) -> Flow:
        """Build a flow; its initial weights come from torch's global generator."""
        s = self.settings
        return new_flow(s.flow, self.context, s.width, s.blocks)

    def starts(self) -> Tensor:
        """Return the K starts (K, p): the common one plus N(0, spread^2) on every parameter."""
        flow = self.flow()
        size = parameter_count(flow)
        common = flatten(flow)
        rows = []
        for k in range(self.context.clusters):
            noise = torch.randn(size, generator=Streams(self.context.seed).torch(f"flow start {k}"))
            row = common.clone()
            row[:size] += self.settings.spread * noise.to(row)
            rows.append(row)
        return torch.stack(rows)

    def points(self, samples: Samples, streams: Streams, purpose: str) -> Callable[[Tensor], Tensor]:
        """Return a function from positions to the inputs of flows, with seeded noise on images."""
        generator = streams.torch(purpose, self.context.device)
        return lambda positions: flow_input(samples, positions, self.context, self.settings.background, generator)

    def losses(self, flows: Tensor, samples: Samples, streams: Streams) -> Tensor:
        """Return -log p of each point under each flow, float32 (n, K); not finite where a flow has diverged."""
        flow = self.flow().eval()
        columns = []
        with torch.no_grad():
            for row in flows:
                load_vector(flow, row)
                # The same noise for every flow.
                points = self.points(samples, streams, "flow noise")
                positions = torch.arange(len(samples), device=samples.index.device)
                columns.append(torch.cat([-flow.log_prob(points(part)) for part in positions.split(FORWARD_POINTS)]))
        return torch.stack(columns, 1).float()

    @classmethod
    def local_defaults_for(cls, settings: Any, kind: str | None) -> LocalSettings:
        """Return the local defaults: affine flows, the default of vectors, need a far smaller rate than networks."""
        affine = settings.flow == "affine" or (settings.flow == "auto" and kind == "vector")
        return cls.affine_defaults if affine else cls.local_defaults

    def fit(
        self, start: Tensor, positions: Tensor, client: Client, k: int, round: int = 1
    ) -> tuple[Tensor, float] | None:
        """Train flow k for `steps` minibatch steps on some of a client's points.

        Minibatches are drawn with replacement; `lr_decay` gives the learning rate of round `round` (1-based). Returns
        the trained vector and the mean loss; None where the flow diverged.
        """
        local = self.context.local
        flow = load_vector(self.flow().train(), start)
        draws = minibatches(client.streams, k, len(positions), self.settings.steps, local.batch).to(positions.device)
        points = self.points(client.train, client.streams, f"flow noise {k}")
        parameters = list(flow.parameters())
        optimiser = build_optimiser(parameters, local, round)
        total = torch.zeros((), dtype=torch.float64, device=positions.device)
        for rows in draws:
            loss = -flow.log_prob(points(positions[rows])).mean()
            descend(loss, parameters, optimiser)
            total += loss.detach()
        trained = flatten(flow)
        return (trained, float(total) / len(draws)) if bool(torch.isfinite(trained).all()) else None

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function to the likeliest flow, posteriors under equal priors, and log-densities (embedding)."""
        flows = [load_vector(self.flow(), row).eval() for row in server.model["flows"]]

        @torch.no_grad()
        def predict(x: Tensor) -> Prediction:
            x = x.to(self.context.device)
            x = x * 255 + 0.5 if self.context.spec.kind == "image" else x
            log_prob = torch.stack([flow.log_prob(x) for flow in flows], 1)
            return Prediction(log_prob.argmax(1), log_prob.softmax(1), log_prob)

        return predict


def new_flow(name: FlowName, context: Context, width: int, blocks: int = 2, *, of_images: FlowName = "cycle") -> Flow:
    """Build a flow; its initial weights come from torch's global generator.

    Args:
        name: kind of flow.
        context: of the run.
        width: number of filters.
        blocks: number of residual blocks.
        of_images: the kind that `auto` means for images.

    Raises:
        MethodError: the flow does not fit such samples.
    """
    if name == "auto":
        name = of_images if context.spec.kind == "image" else "affine"
    dense = name == "dense_cycle"
    try:
        return build_flow("cycle" if dense else name, context.spec.shape, width, blocks, dense=dense)
    except ValueError as error:
        raise MethodError(f"method.flow: {error}") from None


def minibatches(streams: Streams, k: int, count: int, steps: int, batch: int) -> Tensor:
    """Draw rows of minibatches among `count` points, with replacement: int64 (steps, batch)."""
    return torch.randint(count, (steps, batch), generator=streams.torch(f"batches {k}"))


def flow_input(
    samples: Samples, positions: Tensor, context: Context, background: bool, generator: torch.Generator
) -> Tensor:
    """Return the inputs of flows: vectors unchanged, images dequantised to [0, 256).

    Args:
        samples: the samples.
        positions: which of them, int64 (m,).
        context: of the run.
        background: whether pixels below 0.01 of the range become uniform over the range.
        generator: of the noise.
    """
    x = samples.raw(positions)
    if context.spec.kind != "image":
        return x.float()
    noise = torch.rand(x.shape, generator=generator, device=x.device)
    values = x.float() + noise
    return torch.where(x < 256 * 0.01, 256 * noise, values) if background else values
