"""The vectors that a federated clustering works on: of one client, of the test part, and of all samples judged.

A vector is a table row, an image's pixels, or what a frozen encoder makes of an image. Every image is encoded once: a
client keeps its features in its memory, and once there are components it keeps these in their place.

Symbols in shapes: n samples, d columns of a vector, k dimensions after the projection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.streams import Streams
from shoal.data.sets.lazy_array import LazyArray
from shoal.methods.clustering.federated_k_means import ROWS
from shoal.methods.contract.base import Client, Clients, Evaluation
from shoal.methods.contract.context import Context
from shoal.methods.contract.message import Tensors
from shoal.methods.features.encoding import encoder_of
from shoal.methods.features.representation import Representation, check_kind, represented, represented_shape
from shoal.methods.features.space import MEAN, OFFSET_MEAN, PROJECTION, among_landmarks, in_space, projected
from shoal.methods.scores.evaluation import samples_at

FEATURES = "features"
"""In a client's memory: (n, d) float32, what the frozen encoder makes of its images."""
PROJECTED = "projected"
"""In its place once there are components: (n, k) float64, its vectors projected onto these."""
SITE_MEAN = "site_mean"
"""In a client's memory: (d,) float64, the mean of its vectors."""
SITE_OFFSET = "site_offset"
"""In a client's memory: (k,) float64, the offset of its vectors in the space (see `offsets`)."""
ENCODED_ROWS = 64
"""Images that the encoder sees at once."""

Rows = Callable[[Tensor], Tensor]
"""From positions among some samples, int64 (m,), to rows."""


@dataclass(frozen=True)
class ClientVectors:
    """A client's vectors in the space, read block by block.

    Attributes:
        count: n.
        at: returns the vectors at positions, as float64 (m, k).
        device: of the positions.
    """

    count: int
    at: Rows
    device: torch.device

    def __len__(self) -> int:
        return self.count

    def less(self, offset: Tensor) -> ClientVectors:
        """Return the vectors less an offset (k,)."""
        return ClientVectors(self.count, lambda positions: self.at(positions) - offset, self.device)

    def blocks(self) -> Iterator[Tensor]:
        """Yield all vectors in their order, at most `ROWS` at once."""
        for part in torch.arange(self.count, device=self.device).split(ROWS):
            yield self.at(part)


class SpaceVectors(LazyArray):
    """The vectors of all samples of an evaluation in the space, computed for those that are asked for.

    Args:
        count, width: n and k.
        at: returns the vectors at positions.
    """

    def __init__(self, count: int, width: int, at: Rows) -> None:
        super().__init__((count, width), np.dtype(np.float32))
        self._at = at

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of samples by their positions, float32 (m, k)."""
        return torch.cat([self._at(part).float().cpu() for part in torch.from_numpy(rows).split(ROWS)]).numpy()

    def batches(self, rows: int) -> Iterator[tuple[int, Tensor]]:
        """Yield all vectors, float64, at most `rows` at once, each time with the position of the first."""
        for part in torch.arange(len(self)).split(rows):
            yield int(part[0]), self._at(part)


def parts_of(client: Client) -> tuple[Tensor, ...]:
    """Return the positions of a client's training samples, at most `ROWS` at once."""
    parts: tuple[Tensor, ...] = torch.arange(len(client.train), device=client.train.index.device).split(ROWS)
    return parts


class VectorSource:
    """Makes vectors of samples, and finds those that clients keep.

    Args:
        context: of the run.
        networks: of the method, by purpose: the encoder is loaded once.
        directions: whether vectors in the space have unit length.
        centre_sites: whether a client's vectors lose their own mean.
        representation: what is made of samples first.
        drawn_columns: vectors that have more columns are projected onto so many directions, which the seed draws; 0:
            they stay as they are. Nothing has to be sent for these.

    Raises:
        MethodError: the representation is made of other data.
    """

    def __init__(
        self,
        context: Context,
        networks: MutableMapping[str, nn.Module],
        *,
        directions: bool,
        centre_sites: bool,
        representation: Representation = "as-is",
        drawn_columns: int = 0,
    ) -> None:
        check_kind(representation, context.spec.kind)
        self.context = context
        self.networks = networks
        self.directions = directions
        self.centre_sites = centre_sites
        self.representation = representation
        self.drawn_columns = drawn_columns
        self._kept: Tensor | None = None
        """The vectors of all images: the same in every evaluation."""

    @property
    def encoder(self) -> nn.Module | None:
        """The frozen encoder; None where vectors are samples as they are."""
        return encoder_of(self.context, self.networks)

    @property
    def width(self) -> int:
        """Columns of a vector, d."""
        return self.plain_width if self.drawn is None else self.drawn_columns

    @property
    def plain_width(self) -> int:
        """Columns of a vector before it is projected onto drawn directions."""
        encoder = self.encoder
        if encoder is None:
            return math.prod(represented_shape(self.context.spec.shape, self.representation))
        return int(encoder.features)  # type: ignore[arg-type]

    @property
    def layer_widths(self) -> tuple[int, ...]:
        """Columns of a vector from each group of the encoder's layers, where there are several groups."""
        if self.drawn is not None:
            return ()
        encoder = self.encoder
        return self.context.spec.layer_widths if encoder is None else getattr(encoder, "layer_widths", ())

    @property
    def first_layers(self) -> int:
        """Columns of a vector from the first group of the encoder's layers: all, where there is one group."""
        return self.layer_widths[0] if self.layer_widths else self.width

    @cached_property
    def drawn(self) -> Tensor | None:
        """Drawn directions (d, k) that vectors are projected onto; None: they stay as they are."""
        if not 0 < self.drawn_columns < self.plain_width:
            return None
        generator = Streams(self.context.seed).torch("drawn columns")
        drawn = torch.randn(self.plain_width, self.drawn_columns, generator=generator)
        return (drawn / math.sqrt(self.drawn_columns)).to(self.context.device)

    @torch.no_grad()
    def of(self, x: Tensor) -> Tensor:
        """Return the vectors (n, d), float32, of samples x as `Samples.x` gives them."""
        encoder = self.encoder
        x = represented(x.to(self.context.device), self.representation)
        vectors = x.flatten(1).float() if encoder is None else encoder(x).float()
        if self.drawn is None:
            return vectors
        return vectors @ self.drawn

    def own(self, client: Client) -> tuple[Rows, Tensors]:
        """Return the vectors (m, d) of a client, and its memory.

        Reading them raises a `ClientError` where values are not finite.

        Raises:
            ClientError: no samples, or features that are not finite.
        """
        client.check_samples()
        if self.encoder is None:
            return lambda positions: client.finite(self.of(client.train.x(positions))), client.memory
        if FEATURES in client.memory:
            features = client.memory[FEATURES].to(self.context.device)
            return lambda positions: features[positions], client.memory
        positions = torch.arange(len(client.train), device=client.train.index.device)
        parts = positions.split(ENCODED_ROWS)
        made = client.finite(torch.cat([self.of(client.train.x(part)) for part in parts]))
        return lambda positions: made[positions], {**client.memory, FEATURES: made.cpu()}

    def own_projected(self, client: Client, space: Tensors) -> tuple[Rows, Tensors]:
        """Return the projected vectors (m, k) of a client, and its memory.

        Args:
            client: that holds them.
            space: the server's tensors; without a projection vectors are only centred and scaled, unless the client
                keeps projected ones.

        Raises:
            ClientError: as `own`.
        """
        if PROJECTED in client.memory:
            kept = client.memory[PROJECTED].to(self.context.device)
            return lambda positions: kept[positions], client.memory
        vectors, memory = self.own(client)
        site_mean = None
        if self.centre_sites:
            site_mean = self.site_mean(vectors, client)
            if SITE_MEAN not in memory:
                memory = {**memory, SITE_MEAN: site_mean.cpu()}
        if self.encoder is None or PROJECTION not in space:
            return lambda positions: projected(vectors(positions), space, site_mean), memory
        made = torch.cat([projected(vectors(part), space, site_mean) for part in parts_of(client)])
        others = {name: tensor for name, tensor in memory.items() if name != FEATURES}
        return lambda positions: made[positions], {**others, PROJECTED: made.cpu()}

    def site_mean(self, vectors: Rows, client: Client) -> Tensor:
        """Return the mean of a client's vectors (d,), float64."""
        if SITE_MEAN in client.memory:
            return client.memory[SITE_MEAN].to(self.context.device)
        return sum(vectors(part).double().sum(0) for part in parts_of(client)) / len(client.train)  # type: ignore[return-value]

    def judged(
        self, space: Tensors, width: int, clients: Clients, evaluation: Evaluation, *, offsets: bool
    ) -> SpaceVectors:
        """Return the vectors of all samples in the space, training then test.

        With `centre_sites` training samples lose the mean of their own site, and test samples the federation's.

        Args:
            space: the server's tensors.
            width: dimensions of the space.
            clients: all of them, with their memories.
            evaluation: the samples.
            offsets: whether training samples lose the offset that their client keeps.
        """
        kept = None if self.encoder is None else self.kept(space, clients, evaluation)
        offset_of = self.site_offsets(space, width, clients, evaluation) if offsets else lambda _: None
        if kept is not None and PROJECTION in space:

            def at(positions: Tensor) -> Tensor:
                z = kept[positions.to(kept.device)]
                return among_landmarks(z, space, directions=self.directions, offset=offset_of(positions))

        else:
            site_means = self.site_means(space, clients, evaluation)

            def at(positions: Tensor) -> Tensor:
                x = self.of(samples_at(evaluation, positions)) if kept is None else kept[positions.to(kept.device)]
                mean = site_means(positions) if site_means else None
                return in_space(x, space, directions=self.directions, site_mean=mean, offset=offset_of(positions))

        return SpaceVectors(len(evaluation.train) + len(evaluation.data.test_x), width, at)

    def site_offsets(self, space: Tensors, width: int, clients: Clients, evaluation: Evaluation) -> Rows:
        """Return the offset of each sample's site, by position; 0 of samples of no client that keeps one."""
        none = torch.zeros(len(space.get(OFFSET_MEAN, range(width))), dtype=torch.float64)
        by_site = [client.memory.get(SITE_OFFSET, none) for client in clients]
        return self.rows_by_site([*by_site, none], clients, evaluation)

    def kept(self, space: Tensors, clients: Clients, evaluation: Evaluation) -> Tensor:
        """Return the vectors of all images, training then test: (n, k) float64 where they are projected, else (n, d).

        They are made once a worker; training samples of clients that have taken part come from their memory.
        """
        if self._kept is None:
            data = evaluation.data
            tests = self.unkept(lambda part: data.computable(data.test_x[part]), len(data.test_x), space)
            trained = len(evaluation.train)
            rows = tests.new_full((trained + len(tests), tests.shape[1]), math.nan)
            for client in clients:
                memory = client.memory
                if len(client.train):
                    own, memory = self.own_projected(client, space) if PROJECTION in space else self.own(client)
                    places = torch.searchsorted(evaluation.train.index, client.train.index)
                    rows[places] = own(torch.arange(len(client.train))).to(rows)
                places = torch.searchsorted(evaluation.train.index, client.validation.index)
                rows[places] = self.unkept(client.validation.x, len(places), space, memory.get(SITE_MEAN))
            rows[trained:] = tests
            self._kept = rows
        return self._kept

    def unkept(self, x: Rows, count: int, space: Tensors, site_mean: Tensor | None = None) -> Tensor:
        """Return the vectors of samples x, as many as `count`, that no memory holds; projected where the space is."""
        made = [self.of(x(part)) for part in torch.arange(count).split(ENCODED_ROWS) if len(part)]
        vectors = torch.cat([torch.empty(0, self.width, device=self.context.device), *made])
        return projected(vectors, space, site_mean) if PROJECTION in space else vectors

    def site_means(self, space: Tensors, clients: Clients, evaluation: Evaluation) -> Rows | None:
        """Return the mean that each sample loses, by position; None: none loses its site's.

        Args:
            space: knows the federation's mean.
            clients: all of them, with their memories.
            evaluation: the samples.
        """
        if not self.centre_sites:
            return None
        means = []
        for client in clients:
            mean = torch.zeros(self.width, dtype=torch.float64)
            if len(client.train):
                mean = self.site_mean(self.own(client)[0], client)
            means.append(mean)
        return self.rows_by_site([*means, space[MEAN]], clients, evaluation)

    def rows_by_site(self, rows: list[Tensor], clients: Clients, evaluation: Evaluation) -> Rows:
        """Return the row of each sample's client, by position; that of samples of no client is the last one."""
        device = self.context.device
        held = evaluation.train.index
        site = torch.full((len(held) + len(evaluation.data.test_x),), len(rows) - 1, device=device)
        for place, client in enumerate(clients):
            own = torch.cat((client.train.index, client.validation.index))
            site[: len(held)][torch.isin(held, own).to(device)] = place
        table = torch.stack([row.to(device) for row in rows])
        return lambda positions: table[site[positions.to(device)]]
