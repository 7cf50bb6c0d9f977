"""What the federated clusterings of vectors share: features, the space, the starts, and how clusters are judged.

The rounds are of several kinds. Clients send the moments of their vectors, from which the server finds the space (see
`space`), unless vectors are taken as they are; for components four more rounds follow (see `components`). They cluster
their own vectors and send centres and counts, from which the server draws starts, as in k-FED (Dennis et al. 2021).
Clients tell what the cheapest of these cost, and the best one goes on: each round is one iteration of K-means over all
clients, for which only sums and counts leave a client. Where sites may differ by offsets, one start of each beginning
goes on (see `offsets`) until `RACE_ITERATIONS` decide. A subclass may refine what K-means has found.

With `landmarks` other rounds come between: clients send local centres, among which the server places several sets of
landmarks, and then sums of products of affinities to them. K-means works in the space that follows from these (see
`spectral`). Local centres tell whether sites differ by offsets, which they then take away (see `landmark_offsets`).

With `privacy.clip` clients send only sums whose change by a row is bounded: a histogram of each column in place of
moments, then the sums near landmarks and those of K-means (see `private_sums`).

Symbols in shapes: n samples, d features, k dimensions of the space, c clusters, s starts.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.setting import setting
from shoal.core.streams import Streams
from shoal.methods.clustering.declared_sums import (
    ClientLimits,
    check_affinities,
    check_moments,
    check_move,
    check_products,
    check_starts,
    check_weighed,
)
from shoal.methods.clustering.federated_k_means import (
    ROWS,
    cheapest_starts,
    cluster_sums,
    moved_centres,
    nearest,
    summed,
)
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Method, Server, SummedRows, Update
from shoal.methods.contract.context import Context, MethodError, ModelSettings
from shoal.methods.contract.declared import MessageForm, TensorForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Assignment, Prediction, ShardPredictions
from shoal.methods.features.components import (
    BLOCK,
    block_count,
    block_products,
    first_block,
    next_block,
    principal_components,
    with_answer,
)
from shoal.methods.features.landmark_offsets import half_offset, offsets_if_sites_differ
from shoal.methods.features.offsets import STILL_WITH_OFFSETS, beginnings, best_beginning, site_fit
from shoal.methods.features.private_sums import (
    BINS,
    ITERATIONS,
    SURE,
    binned_moments,
    clipped,
    column_bins,
    drawn_places,
    moved_surely,
    noise_of,
    sure_moments,
)
from shoal.methods.features.robust_totals import totals
from shoal.methods.features.space import (
    LANDMARKS,
    MEAN,
    OFFSET_MEAN,
    PROJECTION,
    SCALE,
    SPECTRAL,
    SpaceSettings,
    among_landmarks,
    column_moments,
    energy,
    fitted_space,
    in_space,
    projected,
    shortened,
    within,
)
from shoal.methods.features.spectral import (
    PLACING_SAMPLES,
    SAMPLES_PER_CENTRE,
    affinity_sums,
    in_spectral_space,
    landmark_count,
    landmarks_among,
    set_count,
    spectral_projection,
)
from shoal.methods.features.summed_starts import gaussian_starts
from shoal.methods.features.vectors import (
    SITE_MEAN,
    SITE_OFFSET,
    ClientVectors,
    Rows,
    SpaceVectors,
    VectorSource,
    parts_of,
)
from shoal.methods.scores.assignment import Nearest, nearest_centres
from shoal.methods.scores.evaluation import Judged, evaluate_predictor

CENTRES = "centres"
"""Among the server's tensors: (s, c, k) float64, the centres of the starts that are still in the race."""
BEGINNINGS = "beginnings"
"""Among the server's tensors: (s,) float64, the beginning of each start, by its share (see `offsets`)."""
GRAND_MEAN = "federation.mean"
"""Among the server's tensors: (k,) float64, the mean of all vectors in the space."""
WEIGHED_STARTS = 8
"""Starts of each beginning of which clients tell the cost; fewer where their centres have too many values."""
DRAWN_STARTS = 100
"""Starts that are weighed where they are only draws with the moments of all vectors."""
RACE_ITERATIONS = 5
"""Iterations for which a start of each beginning goes on."""
RACE_SAMPLES = 4096
"""Until then a client answers for a seeded draw of so many of its vectors, and finds its local centres and its offset
there."""
MAX_RACE_VALUES = 1 << 19
"""The centres of all starts have at most so many values: 4 MB, which every client gets once."""
MAX_BETWEEN_ROUNDS = 50_000
"""Training samples whose clusters are judged after a round that is not the last."""
LARGEST = 1e30
"""Bound of sums over a client's vectors: columns may be in any unit."""
LOCAL_STARTS = 3
LOCAL_CENTRES = 2
"""Local centres a cluster, from the best of so many starts of a client's K-means."""
HOLDERS = "holders"
"""Among the server's state, int64 (h,): the clients that keep their projected vectors in their memory."""
ENERGIES = "energies"
"""Among the server's state, float64, by client: the sum of squared norms of its vectors in the space, before they are
projected, by the moments that it sent; infinite where it sent none."""
LONGEST = "longest"
"""Among the server's state, float64: the largest squared norm of centres beside which sites have found offsets."""
COUNTS = "counts"
"""Among the server's state, float64 (s, c): the sizes of the clusters in the iteration before."""
PLACED = {CENTRES, LANDMARKS}
"""What the server has placed once the space is known."""
OF_COLUMNS = (MEAN, SCALE, PROJECTION)
"""What turns columns into projected vectors: megabytes for thousands of columns."""
STILL = 1e-6
"""K-means is done when no centre moves by more than this share of the centres' spread."""


@dataclass(frozen=True)
class FeatureSettings(SpaceSettings):
    """Hyper-parameters of a federated clustering of vectors."""

    min_points: int = setting(
        2,
        "smallest number of a client's samples behind a centre, a sum or a moment that it sends; no protection: "
        "differences of larger groups tell about single samples too (shoal explain RUN --server-sees)",
        ge=1,
    )


class FeatureClustering(Method):
    """A federated clustering of vectors whose server holds the space and the centres."""

    Settings = FeatureSettings
    model_defaults = ModelSettings(encoder="efficientnet-lite0")
    kinds = ("vector", "image", "series")
    trains = False
    judges_features = True
    totals = True
    of_the_server = ("site_offsets",)
    encoder = "frozen"
    settings: FeatureSettings

    def __init__(self, settings: FeatureSettings, context: Context) -> None:
        space = settings.settled(context.spec)
        drawn = space.components if context.clip is not None else 0
        super().__init__(replace(space, components=0) if drawn else space, context)
        self.source = VectorSource(
            context,
            self.network_cache,
            directions=space.directions,
            centre_sites=space.centre_sites,
            representation=space.representation,
            drawn_columns=drawn,
        )

    def init_server(self, federation: Federation) -> Server:
        """Return a server without a space and without centres."""
        return Server()

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
    def private(self) -> bool:
        """Whether noise covers all sums, and rows are cut to a length."""
        return self.context.clip is not None

    @property
    def from_sums(self) -> bool:
        """Whether K-means starts from moments, without local centres."""
        return self.context.summed or self.private

    @property
    def min_points(self) -> int:
        """Samples behind each sum at least."""
        if self.private:
            return 1
        return self.settings.min_points

    @property
    def measures(self) -> bool:
        """Whether the space follows from moments, or histograms, of all clients' vectors."""
        return self.private or self.settings.measured or bool(self.source.layer_widths)

    def row_length(self, tensors: Tensors) -> float:
        """Return the greatest length of a row where noise covers sums, by the server's tensors."""
        assert self.context.clip is not None
        unit = self.settings.directions or SPECTRAL in tensors
        if unit and PLACED & tensors.keys():
            return min(self.context.clip, 1.0)
        return self.context.clip

    def row_bounds(self, message: Message) -> Mapping[str, float]:
        """Return how long a change one row makes to each tensor of the answer to a message, at most."""
        step = message.facts["step"]
        if step == "measure":
            return {"counts": math.sqrt(self.source.width)}
        if step == "start":
            return {
                "samples": 1.0,
                "total": self.row_length(message.tensors),
                "squares": self.row_length(message.tensors) ** 2,
            }
        if step == "tie":
            return {"products": math.sqrt(len(message.tensors[LANDMARKS]))}
        return {"sums": self.row_length(message.tensors), "counts": 1.0}

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

    def broadcast(self, server: Server, client: int) -> Message:
        """Return the space and the centres; no projection to a client that keeps what it makes of its vectors."""
        facts = {"step": self.next_step(server)}
        if HOLDERS not in server.state or client not in server.state[HOLDERS]:
            return Message(server.model, facts)
        return Message({name: t for name, t in server.model.items() if name not in OF_COLUMNS}, facts)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of moments, of local centres, or of the sums of an iteration; with noise without bounds."""
        form = self.exact_form(server, client, samples)
        if not self.private:
            return form
        if self.next_step(server) == "measure":
            return MessageForm({"counts": noisy(TensorForm((self.source.width, BINS), torch.float64))})
        answered = self.row_bounds(self.broadcast(server, client))
        return MessageForm({name: noisy(of) for name, of in form.tensors.items() if name in answered})

    def exact_form(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of a message without noise."""
        double = torch.float64
        total = partial(TensorForm, dtype=double, minimum=-LARGEST, maximum=LARGEST)
        positive = partial(TensorForm, dtype=double, minimum=0, maximum=LARGEST)
        count = partial(TensorForm, dtype=double, minimum=0, maximum=samples, measured=False)
        step = self.next_step(server)
        limits = self.limits(server, client, samples)
        if step == "measure":
            width = self.source.width
            forms = {"samples": count(()), "total": total((width,)), "squares": positive((width,))}
            return MessageForm(forms, rule=partial(check_moments, limits=limits))
        if step == "project":
            block = server.model[BLOCK]
            forms = {"samples": count(()), "products": total(block.shape, dtype=block.dtype)}
            return MessageForm(forms, rule=partial(check_products, block=block, limits=limits))
        width = self.space_width(server)
        clusters = self.context.clusters
        if step == "tie":
            sets, landmarks, _ = server.model[LANDMARKS].shape
            forms = {"products": replace(count((sets, landmarks, landmarks)), measured=True)}
            return MessageForm(forms, rule=partial(check_affinities, samples=samples))
        if step == "start" and self.from_sums:
            return MessageForm({"samples": count(()), "total": total((width,)), "squares": positive((width,))})
        if step in ("place", "start"):
            placing = step == "place"
            sets = set_count(self.landmark_count) if placing else 1
            sizes = range((self.landmark_count if placing else LOCAL_CENTRES * clusters) + 1)
            forms = {"centres": total((sets, sizes, width)), "counts": count((sets, sizes))}
            unit = self.unit_length(server)
            return MessageForm(forms, rule=partial(check_starts, unit=unit, limits=limits))
        centres = server.model[CENTRES]
        costs = positive((len(centres),), measured=False)
        if step == "weigh":
            plain = server.model[BEGINNINGS].cpu() == 0
            return MessageForm(
                {"inertia": costs}, rule=partial(check_weighed, centres=centres, plain=plain, limits=limits)
            )
        forms = {"sums": total(centres.shape), "counts": count(centres.shape[:2]), "inertia": costs}
        return MessageForm(forms, rule=partial(check_move, centres=centres, limits=limits))

    def unit_length(self, server: Server) -> bool:
        """Return whether vectors have unit length where they are clustered: in directions, or among landmarks."""
        return SPECTRAL in server.model or (self.settings.directions and self.next_step(server) != "project")

    def limits(self, server: Server, client: int, samples: int) -> ClientLimits:
        """Return the limits of a client's sums: their length follows from its moments, where it sent some."""
        step = self.next_step(server)
        drawn = step in ("place", "start", "weigh") or (step == "move" and len(server.model[CENTRES]) > 1)
        weight = max(1.0, samples / RACE_SAMPLES) if drawn else 1.0
        if self.unit_length(server):
            energy = float(samples)
        else:
            known = server.state.get(ENERGIES, torch.empty(0))
            energy = float(known[client]) * weight if client < len(known) else math.inf
            energy *= float(server.model[PROJECTION].square().sum(0).max()) if PROJECTION in server.model else 1.0
        if step in ("move", "mix") and has_offsets(server.model):
            energy = energy_less_offset(energy, samples, longest_centre(server))
        return ClientLimits(samples, self.settings.min_points, energy, weight)

    def space_width(self, server: Server) -> int:
        """Dimensions of the space, k."""
        if SPECTRAL in server.model:
            sets, _, clusters = server.model[SPECTRAL].shape
            return sets * clusters
        if PROJECTION in server.model:
            return server.model[PROJECTION].shape[1]
        return self.source.width

    @property
    def landmark_count(self) -> int:
        """Landmarks that are sought in each set."""
        return landmark_count(self.settings.landmarks, self.context.clusters)

    def client_update(self, message: Message, client: Client) -> Update:
        """Return moments, products with a block, local centres, or the sums of one iteration."""
        step = message.facts["step"]
        if step == "measure":
            return self.measured(client)
        vectors, memory = self.source.own_projected(client, message.tensors)
        if step == "project":
            tensors = self.products(vectors, message.tensors[BLOCK].to(self.context.device), client)
        else:
            unit = self.settings.directions and not (self.private and step == "start")
            before = self.offset_before_landmarks(message, client, vectors)
            if before is not None and SITE_OFFSET not in client.memory:
                memory = {**client.memory, **(memory or {}), SITE_OFFSET: before.cpu()}

            def in_this_space(positions: Tensor) -> Tensor:
                z = among_landmarks(vectors(positions), message.tensors, directions=unit, offset=before)
                if not self.private:
                    return z
                return clipped(z, self.row_length(message.tensors))

            z = ClientVectors(len(client.train), in_this_space, client.train.index.device)
            if has_offsets(message.tensors) and len(message.tensors[CENTRES]) == 1:
                offset = self.offset(message, client, z)
                memory = {**client.memory, **(memory or {}), SITE_OFFSET: offset.cpu()}
                z = z.less(offset)
            tensors = self.work(message, client, z)
        if self.private:
            tensors = {name: tensors[name] for name in self.row_bounds(message)}
        return Update(Message({name: t.cpu() for name, t in tensors.items()}), memory=memory)

    def measured(self, client: Client) -> Update:
        """Return the moments of a client's vectors, none of too few, and with `centre_sites` keep their mean."""
        vectors, memory = self.source.own(client)
        if self.private:
            bins = sum(column_bins(vectors(part)) for part in parts_of(client))
            return Update(Message({"counts": torch.as_tensor(bins).cpu()}), memory=memory)
        total = summed(column_moments(vectors(part)) for part in parts_of(client))
        if self.settings.centre_sites:
            mean = total["total"] / total["samples"]
            memory = {**client.memory, **(memory or {}), SITE_MEAN: mean.cpu()}
        if len(client.train) < self.settings.min_points:
            total = {name: torch.zeros_like(tensor) for name, tensor in total.items()}
        return Update(Message({name: tensor.cpu() for name, tensor in total.items()}), memory=memory)

    def products(self, vectors: Rows, block: Tensor, client: Client) -> Tensors:
        """Return the products of a client's vectors with a block of directions (d, b), none of too few vectors."""
        parts = parts_of(client) if len(client.train) >= self.settings.min_points else ()
        return block_products(map(vectors, parts), block)

    def work(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return what a client sends of its vectors z (n, k) in the space."""
        if message.facts["step"] == "start" and self.from_sums:
            enough = len(z) >= self.min_points
            return summed(column_moments(part if enough else part[:0]) for part in z.blocks())
        if message.facts["step"] == "start":
            return self.local_centres(z, client, LOCAL_CENTRES * self.context.clusters, starts=LOCAL_STARTS)
        if message.facts["step"] == "place":
            count = min(self.landmark_count, len(z) // SAMPLES_PER_CENTRE) if len(z) >= PLACING_SAMPLES else 0
            return self.local_centres(z, client, count, sets=set_count(self.landmark_count))
        if message.facts["step"] == "tie":
            landmarks = message.tensors[LANDMARKS].to(self.context.device)
            return {"products": affinity_sums(z.blocks(), landmarks, min_points=self.min_points)}
        centres = message.tensors[CENTRES].to(self.context.device)
        min_points = self.min_points
        if len(centres) > 1:
            sent = self.raced(message, client, z)
        else:
            sent = cluster_sums(z.blocks(), centres, min_points=min_points)._asdict()
        if len(z) < min_points:  # its distances from several centres would tell where a sample is
            sent["inertia"] = torch.zeros_like(sent["inertia"])
        return sent

    def drawn(self, client: Client, z: ClientVectors) -> Tensor:
        """Return a draw of a client's vectors z that stands for all of them, always the same one, float64 (m, k)."""
        generator = replace(client.streams, round=0).torch("race samples")
        order = torch.randperm(len(z), generator=generator)[:RACE_SAMPLES].sort().values
        return torch.cat([z.at(part) for part in order.to(z.device).split(ROWS)])

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
        return site_fit(self.drawn(client, z), centres[0], float(shares[0]), mean).offset

    def raced(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return what each start costs a client, and in an iteration also the sums of its vectors z less its offset."""
        drawn = self.drawn(client, z)
        weight = len(z) / len(drawn)
        centres, shares, mean = (message.tensors[name].to(drawn.device) for name in (CENTRES, BEGINNINGS, GRAND_MEAN))
        fits = [site_fit(drawn, start, share, mean) for start, share in zip(centres, shares.tolist(), strict=True)]
        costs = torch.stack([fit.cost for fit in fits]) * weight
        if message.facts["step"] == "weigh":
            return {"inertia": costs}
        min_points = self.settings.min_points
        sums = [
            cluster_sums(drawn - fit.offset, start[None], min_points=min_points)
            for fit, start in zip(fits, centres, strict=True)
        ]
        return {
            "sums": torch.cat([part.sums for part in sums]) * weight,
            "counts": (torch.cat([part.counts for part in sums]) * weight).clamp_max(len(z)),
            "inertia": costs,
        }

    def local_centres(self, z: ClientVectors, client: Client, count: int, *, sets: int = 1, starts: int = 1) -> Tensors:
        """Return what a client's own K-means finds, in several sets.

        Args:
            z: its vectors.
            client: that holds them.
            count: of centres in each set, at most; 0: the client sends none.
            sets: K-means is run so often, each time from other starts.
            starts: of each K-means, of which the best counts.

        Returns:
            `centres` (sets, l, k), and the samples behind each, `counts`: 0 for those of too few.
        """
        order = torch.randperm(len(z), generator=client.streams.torch("local samples"))[:RACE_SAMPLES]
        drawn = z.at(order.to(z.device)).cpu().numpy()
        # Of more centres, most would have fewer samples behind them than `min_points`.
        count = min(count, len(drawn) // self.settings.min_points)
        if count == 0:
            none = torch.zeros(sets, 0, drawn.shape[1], dtype=torch.float64)
            return {"centres": none, "counts": none[:, :, 0]}
        rng = client.streams.numpy("kmeans")
        clusterings = [kmeans(drawn, count, rng, starts=starts) for _ in range(sets)]
        centres = torch.stack([torch.from_numpy(one.centres).double() for one in clusterings])
        sizes = torch.stack(
            [torch.from_numpy(np.bincount(one.cluster, minlength=count)).double() for one in clusterings]
        )
        few = sizes < self.settings.min_points
        counts = sizes.masked_fill(few, 0) * (len(z) / len(drawn))
        return {"centres": centres.masked_fill(few[:, :, None], 0), "counts": counts}

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Return the space, the landmarks, what ties them, the starts, or the moved centres."""
        if self.next_step(server) == "measure":
            return self.measured_space(server, {update.client: update.message.tensors for update in updates})
        heard: list[int] = []

        def answers() -> Iterator[Tensors]:
            for update in updates:
                heard.append(update.client)
                yield update.message.tensors

        after = self.advanced(server, answers())
        if self.source.encoder is None or PROJECTION not in server.model:
            return after
        known = server.state.get(HOLDERS, torch.empty(0, dtype=torch.int64))
        holders = torch.cat([known, torch.tensor(heard, dtype=torch.int64)]).unique()
        return replace(after, state={**after.state, HOLDERS: holders})

    def totals_of(self, answers: Iterable[Tensors]) -> Tensors:
        """Return the totals of the clients' sums, by the rule of `aggregation`."""
        return totals(answers, self.context.aggregation)

    def advanced(self, server: Server, answers: Iterable[Tensors]) -> Server:
        """Return the state after a round, by what the clients answered in it."""
        step = self.next_step(server)
        if step == "project":
            return self.with_products(server, self.totals_of(answers))
        if step == "tie":
            return self.tied(server, self.totals_of(answers)["products"])
        if step == "start" and self.from_sums:
            moments = self.totals_of(answers)
            if self.private:
                return self.privately_placed(server, moments)
            return self.started_from_moments(server, moments)
        if step in ("place", "start"):
            local, counts = zip(*[(answer["centres"], answer["counts"]) for answer in answers], strict=True)
            if step == "start":
                return self.started(server, local, counts)
            return self.placed(server, local, counts)
        if step == "weigh":
            return self.weighed(server, self.totals_of(answers)["inertia"])
        return self.moved(server, self.totals_of(answers))

    def tied(self, server: Server, products: Tensor) -> Server:
        """Return the state with the spaces of sets of landmarks, of the sums of products of affinities (s, m, m)."""
        if self.private:
            sure = SURE * float(server.facts["count_noise"]) * math.sqrt(len(products))
            products = (products + products.mT) / 2
            products = products.where(products > sure, 0)
        projections = [spectral_projection(of_set, self.context.clusters) for of_set in products]
        model = {**server.model, SPECTRAL: torch.stack(projections)}
        if self.private:
            model = self.started_among_landmarks(model)
        return server.next(model)

    def started(self, server: Server, local: Sequence[Tensor], counts: Sequence[Tensor]) -> Server:
        """Return the state with the starts of each beginning.

        Args:
            server: before.
            local: the centres of each client, (1, l, k).
            counts: of samples behind them, (1, l).
        """
        clusters = self.context.clusters
        sent = [
            (centres[0, count[0] > 0], count[0, count[0] > 0]) for centres, count in zip(local, counts, strict=True)
        ]
        sent = [(centres, count) for centres, count in sent if len(count)]
        if not sent:
            raise MethodError("no client has as many samples as method.min_points: set method.min_points lower")
        offsets = self.settings.sites == "estimate" and SPECTRAL not in server.model
        mean, begun = beginnings(sent, clusters)
        begun = begun if offsets else begun[:1]
        weights = torch.cat([count for _, count in sent])
        rng = Streams(self.context.seed).numpy("kmeans server")
        most = min(WEIGHED_STARTS, max(1, MAX_RACE_VALUES // (len(begun) * clusters * len(mean))))
        starts = [cheapest_starts(centres, weights, clusters, most, rng) for _, centres in begun]
        shares = [share for (share, _), of_share in zip(begun, starts, strict=True) for _ in of_share]
        tensors = {CENTRES: torch.cat(starts), BEGINNINGS: torch.tensor(shares, dtype=torch.float64), GRAND_MEAN: mean}
        return server.next({**server.model, **tensors})

    def started_from_moments(self, server: Server, moments: Tensors) -> Server:
        """Return the state with starts drawn with the moments of all vectors; no site has an offset then."""
        clusters = self.context.clusters
        width = len(moments["total"])
        starts = min(DRAWN_STARTS, max(1, MAX_RACE_VALUES // (clusters * width)))
        drawn = Streams(self.context.seed).torch("kmeans server")
        tensors = {
            CENTRES: gaussian_starts(moments, clusters, starts, drawn),
            BEGINNINGS: torch.zeros(starts, dtype=torch.float64),
            GRAND_MEAN: moments["total"] / moments["samples"],
        }
        return server.next({**server.model, **tensors})

    def weighed(self, server: Server, costs: Tensor) -> Server:
        """Return the state with the start of each beginning that costs least, of costs (s,)."""
        shares = server.model[BEGINNINGS]
        kept = [int(costs.where(shares == share, math.inf).argmin()) for share in shares.unique()]
        return server.next(self.of_starts(server, kept))

    def of_starts(self, server: Server, kept: list[int]) -> Tensors:
        """Return the model with some of its starts."""
        return {**server.model, **{name: server.model[name][kept] for name in (CENTRES, BEGINNINGS)}}

    def measured_space(self, server: Server, sent: Mapping[int, Tensors]) -> Server:
        """Return the state with a space, and with the first block of directions where components are sought.

        Args:
            server: before.
            sent: the moments of each client, by its id.
        """
        widths = (self.source.layer_widths, self.context.spec.column_widths)
        if self.private:
            return self.privately_measured(server, self.totals_of(sent.values())["counts"], *widths)
        space = fitted_space(self.totals_of(sent.values()), self.settings, *widths)
        energies = torch.full((1 + max(sent),), math.inf, dtype=torch.float64)
        for client, moments in sent.items():
            if moments["samples"] > 0 and not self.context.summed:
                energies[client] = energy(moments, space, centre_sites=self.settings.centre_sites)
        state = {**server.state, ENERGIES: energies}
        if not self.settings.components:
            return server.next({**server.model, **space}, state=state)
        drawn = Streams(self.context.seed).torch("principal components")
        block = first_block(self.source.width, self.settings.components, drawn)
        return server.next({**server.model, **space, BLOCK: block}, state=state)

    def privately_measured(self, server: Server, counts: Tensor, *widths: Sequence[int]) -> Server:
        """Return the state with a space by a noisy histogram (d, b), which moments are then to refine."""
        moments = binned_moments(counts)
        space, _ = shortened(moments, fitted_space(moments, self.settings, *widths))
        return server.next(space, facts={**server.facts, "count_noise": noise_of(counts) / math.sqrt(len(counts))})

    def privately_placed(self, server: Server, moments: Tensors) -> Server:
        """Return the state with a refined space, and drawn landmarks or starts in it, by noisy moments of rows."""
        moments = sure_moments(moments, server.model[SCALE], math.sqrt(3) * float(server.facts["count_noise"]))
        widths = (self.source.layer_widths, self.context.spec.column_widths)
        finer, variances = shortened(moments, fitted_space(moments, self.settings, *widths))
        space = within(server.model, finer)
        streams = Streams(self.context.seed)
        landmarks = self.landmark_count if self.settings.landmarks else 0
        sets = set_count(landmarks) if landmarks else 1
        count = landmarks or self.context.clusters
        places = torch.stack([drawn_places(variances, count, streams, f"places {k}") for k in range(sets)])
        if self.settings.directions:
            places = F.normalize(places, dim=2)
        if landmarks:
            return server.next({**space, LANDMARKS: places})
        return server.next({**space, **with_start(places)})

    def started_among_landmarks(self, model: Tensors) -> Tensors:
        """Return the model with a start: centres of the landmarks in their own space."""
        places = in_spectral_space(model[LANDMARKS].flatten(0, 1), model[LANDMARKS], model[SPECTRAL])
        rng = Streams(self.context.seed).numpy("kmeans server")
        centres = kmeans(places.numpy(), self.context.clusters, rng).centres
        return {**model, **with_start(torch.from_numpy(centres).double()[None])}

    def means(self, server: Server, centres: Tensor, sums: Tensors) -> Tensor:
        """Return the means of clusters of so many sums, in place of centres; see `moved_centres`."""
        if not self.private:
            return moved_centres(centres, sums["sums"], sums["counts"])
        told = sums["sums"] if SPECTRAL in server.model else sums["sums"] * (server.model[SCALE] > 0)
        noise = float(server.facts["count_noise"]) * math.sqrt(2)
        return moved_surely(centres, told, sums["counts"], noise, self.row_length(server.model))

    def with_products(self, server: Server, answer: Tensors) -> Server:
        """Return the state with the answer to a block: with the next one, or the components once that was the last."""
        kept = {name: tensor for name, tensor in server.state.items() if name == ENERGIES}
        state = with_answer(server.state, server.model[BLOCK], answer)
        block = next_block(state, server.model[BLOCK])
        if block is not None:
            return server.next({**server.model, BLOCK: block}, state={**kept, **state})
        space = {name: tensor for name, tensor in server.model.items() if name != BLOCK}
        projection = principal_components(state, self.settings.components, self.settings.whitening)
        return server.next({**space, PROJECTION: projection}, state=kept)

    def placed(self, server: Server, local: Sequence[Tensor], counts: Sequence[Tensor]) -> Server:
        """Return the state with sets of landmarks, less offsets where sites differ.

        Args:
            server: before.
            local: the centres of each client, (s, l, k).
            counts: of samples behind them, (s, l).
        """
        model = server.model
        if self.settings.sites == "estimate":
            sent = [(x[n > 0], n[n > 0] / len(n)) for x, n in zip(local, counts, strict=True)]
            rng = Streams(self.context.seed).numpy("offsets of sites")
            offsets = offsets_if_sites_differ(sent, self.context.clusters, rng)
            if offsets is not None:
                model = {**model, OFFSET_MEAN: offsets[0]}
                local = [centres - offset for centres, offset in zip(local, offsets[1], strict=True)]
        return server.next({**model, LANDMARKS: self.landmarks(torch.cat(list(local), 1), torch.cat(list(counts), 1))})

    def landmarks(self, local: Tensor, counts: Tensor) -> Tensor:
        """Return sets of landmarks (s, m, k) among the clients' local centres.

        Args:
            local: (s, l, k).
            counts: of samples behind them, (s, l).

        Raises:
            MethodError: fewer local centres than clusters.
        """
        clusters = self.context.clusters
        fewest = int((counts > 0).sum(1).min())
        if fewest < clusters:
            raise MethodError(
                f"the clients sent {fewest} local centres, too few landmarks for {clusters} clusters: set "
                "method.landmarks to 0, or model.clusters lower"
            )
        count = min(fewest, self.landmark_count)
        rng = Streams(self.context.seed).numpy("landmarks")
        pairs = zip(local, counts, strict=True)
        return torch.stack([landmarks_among(centres[sent > 0], sent[sent > 0], count, rng) for centres, sent in pairs])

    def moved(self, server: Server, sums: Tensors) -> Server:
        """Return the state after one iteration of K-means."""
        before = server.model[CENTRES]
        after = self.means(server, before, sums)
        iterations = int(server.facts.get("iterations", 0)) + 1
        # While beginnings race, none is known to be the best.
        still = (
            iterations >= ITERATIONS
            if self.private
            else len(after) == 1 and self.stands_still(server, after, sums["counts"])
        )
        facts = {**server.facts, "iterations": iterations, "still": still}
        longest = torch.tensor(longest_centre(server), dtype=torch.float64)
        state = {**server.state, LONGEST: longest, COUNTS: sums["counts"]}
        moved = server.next({**server.model, CENTRES: after}, state=state, facts=facts)
        if iterations >= RACE_ITERATIONS and len(after) > 1:
            moved = replace(moved, model=self.of_starts(moved, [best_beginning(sums["inertia"])]))
        return self.after_iteration(moved)

    def stands_still(self, server: Server, after: Tensor, counts: Tensor) -> bool:
        """Return whether K-means is done with centres (1, c, k), of clusters of so many samples (1, c)."""
        most = STILL_WITH_OFFSETS if has_offsets(server.model) else STILL
        near = bool((after - server.model[CENTRES]).abs().max() <= most * after.std())
        return near and (most == STILL or torch.equal(counts, server.state.get(COUNTS, counts[:0])))

    @abstractmethod
    def after_iteration(self, server: Server) -> Server:
        """Return the state after an iteration of K-means, finished or gone over to what refines it."""

    def centres(self, server: Server) -> Tensor:
        """Return the centres (c, k); while beginnings race, those of the one without offsets.

        Raises:
            MethodError: K-means has not started.
        """
        if CENTRES not in server.model:
            raise MethodError(f"{self.name} has no centres before its first iteration of K-means")
        return server.model[CENTRES][0].to(self.context.device)

    def assign(self, server: Server, z: Tensor) -> Prediction:
        """Return the nearest centre of each vector z (n, k) in the space, as a hard assignment."""
        centres = self.centres(server)
        cluster = nearest(z, centres[None])[0][0]
        return Prediction(cluster, F.one_hot(cluster, len(centres)).float(), z.float())

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return the assignment of samples that no client holds: with `centre_sites` they are of no known site."""
        self.centres(server)
        return lambda x: self.assign(server, self.vectors_of(server, x))

    def site_predictor(self, server: Server, x: Tensor, memory: Mapping[str, Tensor]) -> Callable[[Tensor], Prediction]:
        """Return the assignment of samples less the offset of their site."""
        offset = memory.get(SITE_OFFSET)
        if offset is None and OFFSET_MEAN in server.model:
            z = self.before_landmarks(projected(self.source.of(x), server.model))
            offset = half_offset(z.mean(0), server.model[OFFSET_MEAN].to(z.device), len(z), self.context.clusters)
        elif offset is None:
            mean = server.model[GRAND_MEAN].to(self.context.device)
            share = float(server.model[BEGINNINGS][0])
            offset = site_fit(self.vectors_of(server, x), self.centres(server), share, mean).offset
        known = offset.to(self.context.device)
        return lambda x: self.assign(server, self.vectors_of(server, x, known))

    def before_landmarks(self, z: Tensor) -> Tensor:
        """Return projected vectors z (n, k) as they are where landmarks are placed, without an offset."""
        return among_landmarks(z, {}, directions=self.settings.directions)

    def vectors_of(self, server: Server, x: Tensor, offset: Tensor | None = None) -> Tensor:
        """Return samples x (as of `Samples.x`) as vectors in the space, less an offset, float64 (n, k)."""
        return in_space(self.source.of(x), server.model, directions=self.settings.directions, offset=offset)

    def judged_vectors(self, server: Server, clients: Clients, evaluation: Evaluation) -> SpaceVectors:
        """Return the vectors of all samples in the space, training then test."""
        offsets = self.uses_offsets(server)
        return self.source.judged(server.model, self.space_width(server), clients, evaluation, offsets=offsets)

    def uses_offsets(self, server: Server) -> bool:
        """Return whether vectors lose the offsets of their sites."""
        model = server.model
        return OFFSET_MEAN in model or (has_offsets(model) and len(model[CENTRES]) == 1)

    def summed_rows(self, message: Message, client: Client) -> SummedRows | None:
        """Return a client's vectors where they are clustered; None while the space is not known."""
        if message.facts["step"] in ("measure", "project") or (self.private and message.facts["step"] == "start"):
            return None
        vectors = self.source.own_projected(client, message.tensors)[0]
        offset = self.offset_before_landmarks(message, client, vectors)
        z = vectors(torch.arange(len(client.train)))
        rows = among_landmarks(z, message.tensors, directions=self.settings.directions, offset=offset)
        if self.private:
            rows = clipped(rows, self.row_length(message.tensors))
        affine = not (self.private or self.settings.directions or SPECTRAL in message.tensors)
        return SummedRows(rows.double().cpu(), self.settings.measured and affine)

    def predictions(self, server: Server, clients: Clients, evaluation: Evaluation) -> Iterator[ShardPredictions]:
        """Yield the clusters of all samples, and of those that judge features also their vectors."""
        judged = Judged.at_end(evaluation)
        for start, z in self.judged_vectors(server, clients, evaluation).batches(evaluation.batch):
            predicted = self.assign(server, z)
            kept = predicted.embedding[:0, :0] if judged is None else judged.rows_of(predicted.embedding, start)
            yield ShardPredictions(predicted.cluster.cpu(), self.context.clusters, kept)

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return the scores of the clusters, and in the last evaluation those of the vectors as features."""
        if CENTRES not in server.model:
            return {}
        if not evaluation.final:
            evaluation = self.some_of(evaluation)
        predictions = partial(self.predictions, server, clients, evaluation)
        metrics = evaluate_predictor(self.predictor(server), replace(evaluation, shard_predictions=predictions))
        return {**metrics, "site_offsets": 1.0} if self.uses_offsets(server) else metrics

    def some_of(self, evaluation: Evaluation) -> Evaluation:
        """Return an evaluation of at most `MAX_BETWEEN_ROUNDS` training samples, a seeded draw.

        Where vectors are kept by client, all of them are taken.
        """
        kept = self.source.encoder is not None
        count = len(evaluation.train)
        if kept or count <= MAX_BETWEEN_ROUNDS:
            return evaluation
        generator = evaluation.streams.torch("judged between rounds")
        chosen = torch.randperm(count, generator=generator)[:MAX_BETWEEN_ROUNDS].sort().values
        return replace(evaluation, train=evaluation.train.take(chosen.to(evaluation.train.index.device)))

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
        """Return the cluster of every sample, and by what margin its centre is the nearest."""
        centres = self.centres(server).cpu()
        vectors = self.judged_vectors(server, clients, evaluation)
        count = len(vectors)
        near = Nearest(torch.empty(count, dtype=torch.int64), torch.empty(count), torch.empty(count))
        for first, z in vectors.batches(ROWS):
            predicted = self.assign(server, z)
            # Copied to its place: small tensors between large ones that are freed would hold the memory of these.
            here = nearest_centres(predicted.embedding.cpu(), centres, predicted.cluster.cpu())
            for whole, part in zip(near, here, strict=True):
                whole[first : first + len(part)] = part
        corrected = self.settings.centre_sites or self.uses_offsets(server)
        return Assignment(
            near.cluster, near.confidence, len(centres), vectors, centres.float(), near.distance, corrected
        )


def has_offsets(tensors: Tensors) -> bool:
    """Return whether vectors of clients lose the offset of their site, by the tensors of the server or its message."""
    return BEGINNINGS in tensors and bool((tensors[BEGINNINGS] > 0).any())


def noisy(form: TensorForm) -> TensorForm:
    """Return the form of a tensor with noise, which any number may be."""
    return replace(form, minimum=-LARGEST, maximum=LARGEST, measured=False)


def with_start(centres: Tensor) -> Tensors:
    """Return the server's tensors with one start (1, c, k), in which no site has an offset."""
    none = torch.zeros(centres.shape[2], dtype=torch.float64)
    return {CENTRES: centres, BEGINNINGS: none.new_zeros(1), GRAND_MEAN: none}


def longest_centre(server: Server) -> float:
    """Return the largest squared norm of the centres, now or beside which sites found offsets."""
    return max(float(server.model[CENTRES].square().sum(2).max()), float(server.state.get(LONGEST, 0.0)))


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
