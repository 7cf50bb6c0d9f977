"""What UIFCA and IFCA on flows share: K initial flows, local training, and the losses of points under each flow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from shoal.core.setting import setting
from shoal.core.streams import Streams
from shoal.data.view import Samples
from shoal.methods.averaging.vectors import Vectors
from shoal.methods.contract.base import Client, Method, Server
from shoal.methods.contract.context import Context, LocalSettings, MethodError
from shoal.methods.contract.prediction import Prediction
from shoal.methods.training.local import build_optimiser, seeded
from shoal.models.normalising_flows import Flow, build_flow

BATCH = 1000
"""Points in one pass when losses are only read."""


@dataclass(frozen=True)
class FlowSettings:
    """The architecture of the normalising flows, and how long they are trained."""

    steps: int = setting(100, "number of local steps M in each communication round", ge=1)
    flow: Literal["auto", "affine", "tabular", "cycle", "standard"] = setting(
        "auto", "kind of normalising flow; auto: affine for vectors, cycle for images"
    )
    layers: Literal["conv", "dense"] = setting(
        "conv", "networks of the cycle flow: convolutions, or only linear layers, which suit small images on a CPU"
    )
    width: int = setting(
        32, "number of filters in a flow's networks; for tabular and dense flows a quarter of the hidden width", ge=1
    )
    blocks: int = setting(2, "number of residual blocks in a flow's convolutional networks", ge=1)
    together: bool = setting(
        False,
        "train all flows of a client in one computation; equal up to rounding, and not available for convolutions",
    )
    margin: float = setting(
        0.05, "for images: the logit is taken of values squeezed into [margin, 1 - margin]", gt=0, lt=0.5
    )
    spread: float = setting(0.001, "standard deviation of the K initial flows around their common start", ge=0)
    background: bool = setting(False, "for images: replace pixels below 0.01 of the range by uniform noise")


class FlowMethod(Method):
    """Base of methods whose server holds K normalising flows as rows of one tensor (K, p)."""

    kinds = ("vector", "image")
    local_defaults = LocalSettings(epochs=1, batch=64, optimiser="sgd", lr=1e-4)  # the paper's, of images
    affine_defaults = LocalSettings(epochs=1, batch=100, optimiser="sgd", lr=1e-5)
    """Measured: affine flows find Gaussian points where the rate times the steps of a cluster round is 0.03 to 0.1."""
    settings: Any
    """`FlowSettings`, or what has its fields."""

    def flow(self) -> Flow:
        """A flow with the run's common start."""
        s, c = self.settings, self.context
        network = seeded(lambda: new_flow(s, c), c, "flow", self.network_cache)
        if s.together and any(True for _ in network.buffers()):
            raise MethodError("method.together: flows of convolutions have batch statistics; set layers dense")
        assert isinstance(network, Flow)
        return network

    def starts(self) -> Tensor:
        """The K starts (K, p): the common one plus N(0, spread^2) on every parameter."""
        vectors = Vectors(flow := self.flow())
        common = vectors.flatten(flow)
        rows = []
        for k in range(self.context.clusters):
            noise = torch.randn(vectors.size, generator=Streams(self.context.seed).torch(f"flow start {k}"))
            row = common.clone()
            row[: vectors.size] += self.settings.spread * noise.to(row)
            rows.append(row)
        return torch.stack(rows)

    def points(self, samples: Samples, streams: Streams, purpose: str) -> Callable[[Tensor], Tensor]:
        """A function from positions to points as flows take them, with seeded noise on images."""
        generator = streams.torch(purpose, self.context.device)
        return lambda positions: flow_input(samples, positions, self.context, self.settings.background, generator)

    def losses(self, flows: Tensor, samples: Samples, streams: Streams) -> Tensor:
        """-log p of each point under each flow, float32 (n, K); not finite where a flow has diverged."""
        vectors = Vectors(flow := self.flow())
        flow.eval()
        columns = []
        with torch.no_grad():
            for row in flows:
                vectors.load(flow, row)
                # The same noise for every flow.
                points = self.points(samples, streams, "flow noise")
                positions = torch.arange(len(samples), device=samples.index.device)
                columns.append(torch.cat([-flow.log_prob(points(part)) for part in positions.split(BATCH)]))
        return torch.stack(columns, 1).float()

    @classmethod
    def local_defaults_for(cls, settings: Any, kind: str | None) -> LocalSettings:
        """Affine flows, which vectors have by default, want a far smaller rate than networks."""
        affine = settings.flow == "affine" or (settings.flow == "auto" and kind == "vector")
        return cls.affine_defaults if affine else cls.local_defaults

    @property
    def partial(self) -> bool:
        """Whether only a share of the clients takes part in a round."""
        return self.context.fraction < 1

    def fit(
        self, start: Tensor, positions: Tensor, client: Client, k: int, round: int = 1
    ) -> tuple[Tensor, float] | None:
        """`steps` minibatch steps of flow k on some of a client's points; None where it diverged.

        Minibatches are drawn with replacement; the learning rate is that of round `round` (1-based) by `lr_decay`.
        Returns the trained vector and the mean loss.
        """
        local = self.context.local
        vectors = Vectors(flow := self.flow())
        vectors.load(flow, start)
        flow.train()
        draws = minibatches(client.streams, k, len(positions), self.settings.steps, local.batch).to(positions.device)
        points = self.points(client.train, client.streams, f"flow noise {k}")
        optimiser = build_optimiser(flow.parameters(), local, round, self.context.device)
        total = torch.zeros((), dtype=torch.float64, device=positions.device)
        for rows in draws:
            loss = -flow.log_prob(points(positions[rows])).mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            total += loss.detach()
        trained = vectors.flatten(flow)
        return (trained, float(total) / len(draws)) if bool(torch.isfinite(trained).all()) else None

    def fit_all(
        self, starts: Tensor, positions: Mapping[int, Tensor], client: Client, round: int = 1
    ) -> dict[int, tuple[Tensor, float] | None]:
        """`fit` of every flow k that `positions` names, from starts[k]; with `together` in one computation."""
        if not self.settings.together or len(positions) < 2:
            return {k: self.fit(starts[k], rows, client, k, round) for k, rows in positions.items()}
        local, flow = self.context.local, self.flow()
        ks = list(positions)
        # Rows of each parameter: flow after flow, as `Vectors` orders a flow's own.
        sizes = [p.numel() for p in flow.parameters()]
        stacked = {
            f"flow.{name}": part.reshape(-1, *p.shape).clone().requires_grad_()
            for (name, p), part in zip(flow.named_parameters(), starts[ks].split(sizes, 1), strict=True)
        }
        optimiser = build_optimiser(cast("Iterable[nn.Parameter]", stacked.values()), local, round, self.context.device)
        log_prob = torch.func.vmap(lambda weights, x: torch.func.functional_call(_Density(flow), weights, (x,)))
        draws = [
            minibatches(client.streams, k, len(positions[k]), self.settings.steps, local.batch).to(positions[k].device)
            for k in ks
        ]
        points = [self.points(client.train, client.streams, f"flow noise {k}") for k in ks]
        total = torch.zeros(len(ks), device=starts.device)
        for rows in zip(*draws, strict=True):
            x = torch.stack([take(positions[k][row]) for k, take, row in zip(ks, points, rows, strict=True)])
            losses = -log_prob(stacked, x).mean(1)
            optimiser.zero_grad(set_to_none=True)
            losses.sum().backward()
            optimiser.step()
            total += losses.detach()
        trained = torch.cat([tensor.detach().flatten(1) for tensor in stacked.values()], 1)
        means = (total / self.settings.steps).tolist()
        return {
            k: (row, mean) if bool(torch.isfinite(row).all()) else None
            for k, row, mean in zip(ks, trained, means, strict=True)
        }

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """The likeliest flow; its posterior among the K (equal priors) and the K log-densities as embedding."""
        vectors, flows = Vectors(self.flow()), []
        for row in server.model["flows"]:
            flow = self.flow()
            vectors.load(flow, row)
            flows.append(flow.eval())

        @torch.no_grad()
        def predict(x: Tensor) -> Prediction:
            x = x.to(self.context.device)
            x = x * 255 + 0.5 if self.context.spec.kind == "image" else x
            log_prob = torch.stack([flow.log_prob(x) for flow in flows], 1)
            return Prediction(log_prob.argmax(1), log_prob.softmax(1), log_prob)

        return predict


def new_flow(settings: Any, context: Context) -> Flow:
    """A flow as the settings say, its initial weights from torch's global generator.

    Args:
        settings: `FlowSettings`, or what has its fields of the architecture; with `layers: auto` a cycle flow is dense.
        context: of the run.

    Raises:
        MethodError: the flow is not of such samples.
    """
    s = settings
    name = {"vector": "affine", "image": "cycle"}[context.spec.kind] if s.flow == "auto" else s.flow
    dense = s.layers == "dense" or (s.layers == "auto" and name == "cycle")
    try:
        return build_flow(name, context.spec.shape, s.width, s.blocks, s.margin, dense)
    except ValueError as error:
        raise MethodError(f"method.flow: {error}") from None


class _Density(nn.Module):
    """A flow whose call is its log-density, for `functional_call`."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x: Tensor) -> Tensor:
        return self.flow.log_prob(x)


def minibatches(streams: Streams, k: int, count: int, steps: int, batch: int) -> Tensor:
    """Rows of minibatches among `count` points, with replacement: int64 (steps, batch)."""
    return torch.randint(count, (steps, batch), generator=streams.torch(f"batches {k}"))


def flow_input(
    samples: Samples, positions: Tensor, context: Context, background: bool, generator: torch.Generator
) -> Tensor:
    """Points as flows take them: vectors as they are; images dequantised to [0, 256).

    Args:
        samples: to take from.
        positions: int64 (m,).
        context: of the run.
        background: pixels below 0.01 of the range become uniform over the range.
        generator: of the noise.
    """
    x = samples.raw(positions)
    return dequantise(x, background, generator) if context.spec.kind == "image" else x.float()


def dequantise(x: Tensor, background: bool, generator: torch.Generator) -> Tensor:
    """Bytes as values in [0, 256), by uniform noise; with `background` those below 0.01 of the range are all noise."""
    noise = torch.rand(x.shape, generator=generator, device=x.device)
    values = x.float() + noise
    return torch.where(x < 256 * 0.01, 256 * noise, values) if background else values
