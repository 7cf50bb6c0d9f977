"""What the federated clusterings of vectors share: which round follows which, and what a client answers in each.

The rounds are of several kinds. Clients send the moments of their vectors, from which the server finds the space,
unless vectors are taken as they are; for components four more rounds follow (`space_steps`). They cluster their own
vectors and send centres and counts, from which the server draws starts (`start_steps`). The best one goes on: each
round is one iteration of K-means over all clients (`k_means_step`). A subclass may refine what K-means has found.

With `landmarks` other rounds come between (`landmark_steps`): clients send local centres, among which the server places
several sets of landmarks, and then sums of products of affinities to them. K-means works in the space that follows.

With `privacy.clip` clients send only sums whose change by a row is bounded: a histogram of each column in place of
moments, then the sums near landmarks and those of K-means (see `private_sums`).

Symbols in shapes: n samples, d features, k dimensions of the space, c clusters, s starts.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from shoal.methods.clustering.declared_sums import LARGEST, ClientLimits
from shoal.methods.contract.base import Client, Server, SummedRows, Update
from shoal.methods.contract.context import Context
from shoal.methods.contract.declared import MessageForm, TensorForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.features.centre_clustering import (
    BEGINNINGS,
    CENTRES,
    GRAND_MEAN,
    PLACED,
    CentreClustering,
    FeatureSettings,
    has_offsets,
)
from shoal.methods.features.clustering_step import Answers, ClusteringStep
from shoal.methods.features.components import block_count
from shoal.methods.features.k_means_step import Iteration, NoisyIteration, longest_centre
from shoal.methods.features.landmark_offsets import half_offset
from shoal.methods.features.landmark_steps import LandmarkPlaces, LandmarkTies, NoisyTies
from shoal.methods.features.number_steps import SEEK, HalfCentres, HalfCounts
from shoal.methods.features.offsets import site_fit
from shoal.methods.features.private_sums import clipped
from shoal.methods.features.space import (
    LANDMARKS,
    MEAN,
    OFFSET_MEAN,
    PROJECTION,
    SCALE,
    SPECTRAL,
    among_landmarks,
)
from shoal.methods.features.space_steps import ENERGIES, ComponentProducts, Histograms, Moments
from shoal.methods.features.start_steps import (
    RACE_SAMPLES,
    LocalStarts,
    MomentStarts,
    NoisyPlaces,
    StartCosts,
    drawn_vectors,
)
from shoal.methods.features.vectors import SITE_OFFSET, ClientVectors, Rows, parts_of

HOLDERS = "holders"
"""Among the server's state, int64 (h,): the clients that keep their projected vectors in their memory."""
OF_COLUMNS = (MEAN, SCALE, PROJECTION)
"""What turns columns into projected vectors: megabytes for thousands of columns."""


class FeatureClustering(CentreClustering):
    """A federated clustering of vectors, round by round."""

    totals = True

    def __init__(self, settings: FeatureSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.steps: dict[str, ClusteringStep] = {
            "measure": Histograms(self) if self.private else Moments(self),
            "project": ComponentProducts(self),
            "place": LandmarkPlaces(self),
            "tie": NoisyTies(self) if self.private else LandmarkTies(self),
            "start": self.first_step(),
            "weigh": StartCosts(self),
            "move": NoisyIteration(self) if self.private else Iteration(self),
            "halves": HalfCentres(self),
            "count halves": HalfCounts(self),
        }

    def first_step(self) -> ClusteringStep:
        """Return the step that finds where K-means starts, or with noise and landmarks where these are."""
        if self.private:
            return NoisyPlaces(self)
        return MomentStarts(self) if self.context.summed else LocalStarts(self)

    def continued(self, tensors: Tensors) -> Tensors | None:
        """Return the space and the centres of another run, which go on moving; None where they are of another form."""
        names = (MEAN, SCALE, PROJECTION, LANDMARKS, SPECTRAL, OFFSET_MEAN, CENTRES, BEGINNINGS, GRAND_MEAN)
        model = {name: tensors[name] for name in names if name in tensors}
        server = Server(model)
        if CENTRES not in model or self.next_step(server) != "move":
            return None
        fits = MEAN not in model or len(model[MEAN]) == self.source.width
        shape = (1, self.context.clusters, self.space_width(server))
        return model if fits and model[CENTRES].shape == shape else None

    @property
    def measures(self) -> bool:
        """Whether the space follows from moments, or histograms, of all clients' vectors."""
        return self.private or self.settings.measured or bool(self.source.layer_widths)

    @property
    def first_round_with_clusters(self) -> int:
        """The round of the first centres: after those that find the space, components and landmarks."""
        settings = self.settings
        if self.private:
            return 3 if settings.landmarks else 2
        space = int(self.measures)
        components = block_count(self.source.width, settings.components) if settings.components else 0
        landmarks = 2 if settings.landmarks else 0
        return space + components + landmarks + 1

    def next_step(self, server: Server) -> str:
        """Return what the round after a state does, from measure, project, place and tie to start and move."""
        if SEEK in server.facts:
            return str(server.facts[SEEK])
        if self.measures and MEAN not in server.model:
            return "measure"
        if self.settings.components and PROJECTION not in server.model:
            return "project"
        if self.private and not PLACED & server.model.keys():
            return "start"
        if self.settings.landmarks and LANDMARKS not in server.model:
            return "place"
        if self.settings.landmarks and SPECTRAL not in server.model:
            return "tie"
        if CENTRES not in server.model:
            return "start"
        shares = server.model[BEGINNINGS]
        return "move" if len(shares) == len(shares.unique()) else "weigh"

    def step_of(self, message: Message) -> ClusteringStep:
        """Return the step that a message asks for."""
        return self.steps[message.facts["step"]]

    def broadcast(self, server: Server, client: int) -> Message:
        """Return the space and the centres; no projection to a client that keeps what it makes of its vectors."""
        facts = {"step": self.next_step(server)}
        if HOLDERS not in server.state or client not in server.state[HOLDERS]:
            return Message(server.model, facts)
        return Message({name: t for name, t in server.model.items() if name not in OF_COLUMNS}, facts)

    def row_bounds(self, message: Message) -> Mapping[str, float]:
        """Return how long a change one row makes to each tensor of the answer to a message, at most."""
        return self.step_of(message).row_bounds(message)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of moments, of local centres, or of the sums of an iteration; with noise without bounds."""
        form = self.steps[self.next_step(server)].form(server, self.limits(server, client, samples))
        if not self.private:
            return form
        answered = self.row_bounds(self.broadcast(server, client))
        return MessageForm({name: noisy(of) for name, of in form.tensors.items() if name in answered})

    def limits(self, server: Server, client: int, samples: int) -> ClientLimits:
        """Return the limits of a client's sums: their length follows from its moments, where it sent some."""
        step = self.next_step(server)
        drawn = step in ("place", "start", "weigh") or (step == "move" and len(server.model[CENTRES]) > 1)
        weight = max(1.0, samples / RACE_SAMPLES) if drawn else 1.0
        if SPECTRAL in server.model or (self.settings.directions and step != "project"):
            energy = float(samples)
        else:
            known = server.state.get(ENERGIES, torch.empty(0))
            energy = float(known[client]) * weight if client < len(known) else math.inf
            energy *= float(server.model[PROJECTION].square().sum(0).max()) if PROJECTION in server.model else 1.0
        if step in ("move", "mix") and has_offsets(server.model):
            energy = energy_less_offset(energy, samples, longest_centre(server))
        return ClientLimits(samples, self.settings.min_points, energy, weight)

    def client_update(self, message: Message, client: Client) -> Update:
        """Return moments, products with a block, local centres, or the sums of one iteration."""
        step = self.step_of(message)
        vectors, memory = self.source.own_projected(client, message.tensors)
        before = self.offset_before_landmarks(message, client, vectors)
        if before is not None and SITE_OFFSET not in memory:
            memory = {**memory, SITE_OFFSET: before.cpu()}
        at = self.rows_in_space(message, vectors, before)
        z = ClientVectors(len(client.train), at, client.train.index.device)
        if has_offsets(message.tensors) and len(message.tensors[CENTRES]) == 1:
            offset = self.offset(message, client, z)
            memory = {**memory, SITE_OFFSET: offset.cpu()}
            z = z.less(offset)
        tensors = step.answer(message, client, z)
        if self.private:
            tensors = {name: tensors[name] for name in step.row_bounds(message)}
        answer = Message({name: t.cpu() for name, t in tensors.items()})
        if memory is client.memory:
            return Update(answer)
        return Update(answer, memory=memory)

    def rows_in_space(self, message: Message, vectors: Rows, before: Tensor | None) -> Rows:
        """Return a client's vectors as its step takes them, with noise no longer than rows may be.

        Args:
            message: that asks for the step.
            vectors: projected, as far as the space is known.
            before: the offset (k,) that they lose before landmarks count; None: none.
        """
        directions = self.settings.directions and self.step_of(message).in_the_space

        def at(positions: Tensor) -> Tensor:
            z = among_landmarks(vectors(positions), message.tensors, directions=directions, offset=before)
            if self.private and MEAN in message.tensors:
                return clipped(z, self.row_length(message.tensors))
            return z

        return at

    def offset_before_landmarks(self, message: Message, client: Client, vectors: Rows) -> Tensor | None:
        """Return the offset (k,) that a client's vectors lose before landmarks count; None where sites have none."""
        if OFFSET_MEAN not in message.tensors:
            return None
        if SITE_OFFSET in client.memory:
            return client.memory[SITE_OFFSET].to(self.context.device)
        count = len(client.train)
        total = torch.stack([self.before_landmarks(vectors(part)).sum(0) for part in parts_of(client)]).sum(0)
        return half_offset(total / count, message.tensors[OFFSET_MEAN].to(total.device), count, self.context.clusters)

    def offset(self, message: Message, client: Client, z: ClientVectors) -> Tensor:
        """Return the offset of a client's vectors z (n, k) beside the centres, (k,)."""
        centres, shares, mean = (message.tensors[name].to(z.device) for name in (CENTRES, BEGINNINGS, GRAND_MEAN))
        return site_fit(drawn_vectors(client, z), centres[0], float(shares[0]), mean).offset

    def summed_rows(self, message: Message, client: Client) -> SummedRows | None:
        """Return a client's vectors where they are clustered; None while the space is not known."""
        if not self.step_of(message).in_the_space:
            return None
        vectors = self.source.own_projected(client, message.tensors)[0]
        before = self.offset_before_landmarks(message, client, vectors)
        rows = self.rows_in_space(message, vectors, before)(torch.arange(len(client.train)))
        affine = not (self.private or self.settings.directions or SPECTRAL in message.tensors)
        return SummedRows(rows.double().cpu(), self.settings.measured and affine)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Return the space, the landmarks, what ties them, the starts, or the moved centres."""
        step = self.next_step(server)
        heard: list[int] = []

        def answers() -> Iterator[tuple[int, Tensors]]:
            for update in updates:
                heard.append(update.client)
                yield update.client, update.message.tensors

        after = self.after_step(step, server, answers())
        if self.source.encoder is None or PROJECTION not in server.model:
            return after
        known = server.state.get(HOLDERS, torch.empty(0, dtype=torch.int64))
        holders = torch.cat([known, torch.tensor(heard, dtype=torch.int64)]).unique()
        return replace(after, state={**after.state, HOLDERS: holders})

    def after_step(self, step: str, server: Server, answers: Answers) -> Server:
        """Return the state after a step."""
        after = self.steps[step].after(server, answers)
        return self.after_iteration(after) if step == "move" else after

    @abstractmethod
    def after_iteration(self, server: Server) -> Server:
        """Return the state after an iteration of K-means, finished or gone over to what refines it."""


def noisy(form: TensorForm) -> TensorForm:
    """Return the form of a tensor with noise, which any number may be."""
    return replace(form, minimum=-LARGEST, maximum=LARGEST, measured=False)


def energy_less_offset(energy: float, samples: int, longest: float) -> float:
    """Return the largest sum of squared norms that a client's vectors can have less its offset.

    The mean of the vectors from which the offset follows is then one of centres.

    Args:
        energy: that they can have with it.
        samples: of the client.
        longest: the largest squared norm of a centre.
    """
    if samples <= RACE_SAMPLES:
        return energy + samples * longest
    # The mean of a draw differs from that of all.
    return energy * (5 + 4 * samples / RACE_SAMPLES) + 2 * samples * longest
