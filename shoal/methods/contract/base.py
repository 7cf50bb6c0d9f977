"""The contract of a federated system: a round is one exchange of messages, and the engine is the network.

A system is a subclass of `Method`, with these steps:

    server = method.init_server(federation)
    while not server.finished:
        for client in method.sample_clients(server, federation):
            message = method.broadcast(server, client)          # server to client
            update = method.client_update(message, clients[client])  # on the client; its message goes to the server
        server = method.aggregate(server, updates)
        metrics = method.evaluate(server, clients, evaluation)

The engine does the rest: it runs clients on workers, carries messages, keeps states and memories, retries and resumes.
All that travels is a `Message`, so that bytes, and the delay that they imply, are counted for every method alike. A
client's private memory stays with the client; its inbox holds the messages of other clients.

A method has no state of its own: the server's is in `Server`, a client's in its memory, and every random draw comes
from the streams of the client, the federation or the evaluation. docs/adding-a-method.md shows a complete method.

Symbols in shapes: n samples, c clusters, d features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from shoal.core.errors import ShoalError
from shoal.core.streams import Streams
from shoal.data.sets.prepared import DataSpec
from shoal.data.views.view import DeviceData, Samples
from shoal.methods.contract.context import (
    Context,
    LocalSettings,
    MethodError,
    ModelSettings,
    check_trained_encoder,
)
from shoal.methods.contract.declared import MessageForm, TensorForm, exactly, forms_like
from shoal.methods.contract.initial_encoder import initial_encoder
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Assignment, Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.contract.site_sums import SiteSums
from shoal.models.encoders import OF_KIND, encoders_for

if TYPE_CHECKING:  # only figures need it: training runs without
    from matplotlib.figure import Figure


SELECTING = "selecting"
"""The metric of `client_update` that is above 0 where a client trained nothing and only chose samples for its peers;
simulated delays count such rounds apart."""


class ClientError(ShoalError):
    """A client cannot do its part of the round: the engine retries it, then leaves it out."""


@dataclass(frozen=True)
class Server:
    """The server's state between rounds.

    Attributes:
        model: the tensors that clients receive and answer, and that are judged and served: weights, K stacked models,
            centres.
        state: all other tensors that the server keeps: momentum of a server optimiser, cached updates, labels. It
            shares no name with `model`.
        facts: JSON values: a step counter, a tree of clusters, which clients are present.
        round: number of rounds done; 0 before the first.
        finished: whether the run ends here, although more rounds may be set.
    """

    model: Tensors = field(default_factory=dict)
    state: Tensors = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    round: int = 0
    finished: bool = False

    @property
    def tensors(self) -> Tensors:
        """All tensors by name, those of the model first."""
        return {**self.model, **self.state}

    def next(
        self,
        model: Tensors,
        *,
        state: Tensors | None = None,
        facts: dict[str, Any] | None = None,
        finished: bool = False,
    ) -> Server:
        """Return the server after one more round, with this model; by default it keeps its state and facts."""
        following = replace(self, model=model, round=self.round + 1, finished=finished)
        if state is not None:
            following = replace(following, state=state)
        if facts is not None:
            following = replace(following, facts=facts)
        return following

    def with_model(self, tensors: Tensors) -> Server:
        """Return this server with some tensors of the model replaced, by name."""
        return replace(self, model={**self.model, **tensors})


@dataclass(frozen=True)
class Client:
    """One client as its worker sees it.

    Attributes:
        id: its number, from 0 to K - 1; the same for the whole run.
        train, validation: its samples.
        memory: the private tensors that it last returned; empty at first.
        inbox: messages of other clients since it last took part, as (sender, message), by round, then by sender.
        streams: its random streams of this round.
    """

    id: int
    train: Samples
    validation: Samples
    memory: Tensors
    inbox: tuple[tuple[int, Message], ...]
    streams: Streams

    def check_samples(self, fewest: int = 1) -> None:
        """Refuse too few training samples.

        Raises:
            ClientError: names the client, and says how many it has.
        """
        if len(self.train) < fewest:
            raise ClientError(
                f"client {self.id} has {len(self.train)} training samples, and its work needs at least {fewest}"
            )

    def finite(self, x: Tensor) -> Tensor:
        """Return values of the client's samples, all of which must be finite.

        Raises:
            ClientError: one is not.
        """
        if not bool(torch.isfinite(x).all()):
            raise ClientError(f"client {self.id} holds values that are not finite")
        return x


@dataclass(frozen=True)
class Update:
    """The result of `client_update`.

    Attributes:
        message: to the server.
        peers: messages to other clients, by id; each lies in that client's inbox when it next takes part.
        memory: the client's new private memory; None: it did not change.
        metrics: numbers about the local work, such as `loss`, kept per client and round.
        client: the client's id; set by the engine.
    """

    message: Message
    peers: dict[int, Message] = field(default_factory=dict)
    memory: Tensors | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    client: int = -1


@dataclass(frozen=True)
class SummedRows:
    """A client's rows of which a message to the server holds sums by group, for those who ask what the server reads.

    Attributes:
        rows: float64 (n, k), as they are summed.
        total_known: whether the sum of all rows follows from moments that the client sent before.
    """

    rows: Tensor
    total_known: bool


class Clients(ABC):
    """All clients of a federation, each loaded when it is accessed: an evaluation may need none, one or all."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, client: int) -> Client:
        """Return the client with its current memory."""

    def __contains__(self, client: object) -> bool:
        """Return whether a client's samples are here: those of all clients, unless they lie at sites."""
        return client in range(len(self))

    def __iter__(self) -> Iterator[Client]:
        return (self[client] for client in range(len(self)) if client in self)


@dataclass(frozen=True)
class Federation:
    """The server's knowledge of the federation.

    Attributes:
        spec: the data set's kind and shape.
        sizes: number of training samples of each client.
        streams: the server's random streams.
        truth: the planted group of each client, for scoring only; empty where none was planted.
        quarantined: clients that take part no more, because their messages were refused too often.
    """

    spec: DataSpec
    sizes: tuple[int, ...]
    streams: Streams
    truth: tuple[int, ...] = ()
    quarantined: frozenset[int] = frozenset()

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.sizes)


@dataclass(frozen=True)
class Evaluation:
    """The data and the extent of an evaluation.

    Attributes:
        data: the whole set on the device; its test part is never trained on.
        train: every training sample that some client holds.
        streams: random streams of this evaluation.
        final: whether this is the run's last evaluation, with the metrics that are too expensive for every round.
        batch: number of samples in a forward pass.
        recalibrate: about how many training samples give BatchNorm's statistics before an averaged network is judged;
            0: it is judged with the averaged statistics.
        threads: number of threads that predict batches.
        at_site: collects what a site sends of an evaluation of its own samples; None: all samples are here.
    """

    data: DeviceData
    train: Samples
    streams: Streams
    final: bool = False
    batch: int = 512
    recalibrate: int = 0
    threads: int = 1
    at_site: SiteSums | None = None


class Method(ABC):
    """A federated system.

    A subclass sets `name`, `title`, `question`, `about` and `Settings`, implements `client_update`, `aggregate` and
    `evaluate`, and overrides `init_server` where its server begins with a model, `broadcast` where clients get
    something else than the model, and `predictor` where its server holds one model. It is added to
    `shoal.methods.registry.METHODS`.

    Class attributes that identify the method:
        name: its name in `method.name` of the settings.
        title: what people call it.
        question: what it answers; it stands there in `shoal run --methods`.
        about: what it does, in a sentence.
        Settings: its frozen dataclass of hyper-parameters.
        local_defaults, model_defaults: the sections `local` and `model` where the settings leave them out.
        loss_note: why the losses of different rounds cannot be compared, in a sentence; empty where they can.

    Class attributes for the engine:
        kinds: kinds of data that it works on: image, vector, series, text.
        pooled: whether one client holds all data (centralised references).
        needs_clusters: whether the method must know the number of clusters to find.
        averages: whether the next model is the mean of the clients' models, weighted by the fact `n` of their messages,
            or by `aggregation.rule`. Its `aggregate` also takes sums of messages (`shoal.methods.averaging.robust`).
        totals: whether its `aggregate` needs only the totals of its messages' tensors, and takes them as one message.
        averages_parts: whether it averages models of which clients train some, or in some rounds. `aggregation.rule`
            applies to it too.
        server_optimiser: whether `aggregation.server` moves its averaged model.
        local_options: which of `local.steps` and `local.proximal` apply to its local work.
        encoder: what it does with the network that `model.encoder` names: `trained` by clients, from random or
            pretrained weights; `frozen`; or `none`.
        evaluation_reads_memory: whether `recalibrate`, `evaluate` or `assignment` read a client's memory or inbox. If
            not, both are empty there, and memories need not travel to the worker that evaluates.

    Class attributes that the tests of all methods check:
        trains: whether a client's work is gradient steps, with their mean `loss` among its metrics.
        learns_from_labels: whether it is trained on the labels of the training samples; every client must then hold
            out validation samples.
        finds_clusters: whether every evaluation judges the cluster of each sample: `clusters_used`, and with labels
            `acc`, `nmi`, `ari` and `purity`.
        of_the_server: metrics of `evaluate` that follow from the server alone, and are the same at every site.
        judges_features: whether the last evaluation judges the features of samples: `effective_rank`, `uniformity`,
            with labels `knn` and `probe`, and for a method that trains `alignment`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    question: ClassVar[Question]
    about: ClassVar[str]
    Settings: ClassVar[type]
    pooled: ClassVar[bool] = False
    needs_clusters: ClassVar[bool] = True
    local_defaults: ClassVar[LocalSettings] = LocalSettings()
    model_defaults: ClassVar[ModelSettings] = ModelSettings()
    loss_note: ClassVar[str] = ""
    kinds: ClassVar[tuple[str, ...]] = ("image",)
    trains: ClassVar[bool] = True
    learns_from_labels: ClassVar[bool] = False
    finds_clusters: ClassVar[bool] = True
    of_the_server: ClassVar[tuple[str, ...]] = ()
    judges_features: ClassVar[bool] = False
    averages: ClassVar[bool] = False
    totals: ClassVar[bool] = False
    averages_parts: ClassVar[bool] = False
    server_optimiser: ClassVar[bool] = False
    local_options: ClassVar[tuple[str, ...]] = ()
    encoder: ClassVar[Literal["trained", "frozen", "none"]] = "none"
    evaluation_reads_memory: ClassVar[bool] = True

    @property
    def first_round_with_clusters(self) -> int:
        """The first round after which samples have clusters, where the method finds any."""
        return 1

    def __init__(self, settings: Any, context: Context) -> None:
        if context.spec.kind not in self.kinds:
            raise MethodError(
                f"method {self.name!r} works on {' and '.join(self.kinds)} data, "
                f"and {context.spec.name!r} is {context.spec.kind} data"
            )
        rule = context.aggregation.rule
        by_client = self.totals and rule in ("median", "trimmed_mean") and not context.aggregation.clip
        if not (context.aggregation.is_mean or self.averages or self.averages_parts or by_client):
            raise MethodError(
                "aggregation.rule and clip only apply to methods that average models, and "
                f"{self.name!r} averages none: "
                "set aggregation.rule=mean and aggregation.clip=0"
            )
        if context.aggregation.server.name != "none" and not self.server_optimiser:
            raise MethodError(
                f"aggregation.server moves one model that is averaged every round, and method {self.name!r} has none: "
                "set aggregation.server.name=none"
            )
        if context.local.proximal and "proximal" not in self.local_options:
            raise MethodError(
                "local.proximal keeps gradient steps near the model that the server sent, and method "
                f"{self.name!r} takes no steps from such a model: set local.proximal=0"
            )
        self._check_encoder(context)
        self.settings = settings
        self.context = context
        self.network_cache: dict[str, nn.Module] = {}
        """Networks with their initial weights, by purpose (see `shoal.methods.training.local.seeded`)."""
        self._model_forms: tuple[Server, dict[str, TensorForm]] | None = None
        if self.needs_clusters:
            _ = context.clusters  # raises where neither settings nor labels tell the number of clusters

    @classmethod
    def local_defaults_for(cls, settings: Any, kind: str | None) -> LocalSettings:
        """Return the section `local` where the settings leave it out, for defaults that depend on the data.

        Args:
            settings: the method's.
            kind: kind of the data; None for a user's own set, whose kind is not known yet.
        """
        return cls.local_defaults

    @classmethod
    def encoder_for(cls, encoder: str, kind: str) -> str:
        """Return the encoder of a run: on vectors and windows that of the kind takes the place of the method's default.

        Args:
            encoder: the name in `model.encoder`.
            kind: of the data.

        Raises:
            MethodError: another encoder, which does not take such data.
        """
        fit = encoders_for(kind)
        if cls.encoder != "trained" or kind == "text" or encoder in fit:
            return encoder
        if kind in OF_KIND and encoder == cls.model_defaults.encoder:
            return OF_KIND[kind]
        raise MethodError(
            f"model.encoder {encoder!r} does not take {kind} data: set model.encoder to one of {', '.join(fit)}"
        )

    def _check_encoder(self, context: Context) -> None:
        """Refuse an encoder that the method cannot use, or that does not take such data."""
        if context.model.start == "pretrained" and self.encoder != "trained":
            raise MethodError(f"method {self.name!r} trains no encoder from pretrained weights: set model.start=random")
        if context.model.start == "pretrained" and context.spec.kind != "image":
            raise MethodError(
                f"model.start=pretrained is for images, and {context.spec.name!r} holds {context.spec.kind} data: set "
                "model.start=random"
            )
        if self.encoder != "frozen" and context.spec.kind == "image":
            check_trained_encoder(self.name, context.model)
        context.check_encoder()
        if context.model.start == "random":
            self.encoder_for(context.model.encoder, context.spec.kind)

    def new_encoder(self) -> nn.Module:
        """Return a new encoder as `model.start` sets it; random weights come from torch's global generator."""
        c = self.context
        if c.model.start == "pretrained":
            return initial_encoder(c)
        return initial_encoder(c, self.encoder_for(c.model.encoder, c.spec.kind))

    def init_server(self, federation: Federation) -> Server:
        """Return the server's state before round 1; by default an empty one."""
        return Server()

    def sample_clients(self, server: Server, federation: Federation) -> list[int]:
        """Return the clients to train next, ascending: a seeded draw of `fraction` of those not quarantined."""
        quarantined = sorted(client for client in federation.quarantined if client < federation.clients)
        available = federation.clients - len(quarantined)
        count = min(available, max(1, round(self.context.fraction * available)))
        if count >= available:
            sampled = list(range(available))
        else:
            # Ranks among the available clients: a draw of few costs the same, however many there are.
            rng = replace(federation.streams, round=server.round + 1).numpy("participation")
            sampled = sorted(rng.choice(available, count, replace=False).tolist())
        for client in quarantined:
            sampled = [rank + (rank >= client) for rank in sampled]
        return sampled

    def broadcast(self, server: Server, client: int) -> Message:
        """Return the message from the server to one client; by default the model."""
        return Message(server.model)

    @abstractmethod
    def client_update(self, message: Message, client: Client) -> Update:
        """Do the client's work of one round, and return its messages, its memory and its metrics.

        Raises:
            ClientError: this client cannot do it (no sample, a loss that is not finite).
        """

    def cohort_update(self, cohort: Sequence[tuple[Message, Client]]) -> list[Update | Exception]:
        """Do the work of several clients: one after another, or, where a method overrides this, in one computation.

        Returns:
            The update of each client, or the exception that it raised. Both ways agree up to rounding.
        """
        outcomes: list[Update | Exception] = []
        for message, client in cohort:
            try:
                outcomes.append(self.client_update(message, client))
            except Exception as error:  # one client's fault is not the others'
                outcomes.append(error)
        return outcomes

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of a client's message to the server in the next round.

        A client whose message does not have the form is left out of the round. The default is for a method that
        `averages`: the form of the model's tensors and of the fact `n`.

        Args:
            server: the state before the round.
            client: the client's id.
            samples: number of training samples of the client.

        Raises:
            MethodError: the method averages no models, and does not say it.
        """
        if not self.averages:
            raise MethodError(f"method {self.name!r} does not say what its clients send: give it a `declared`")
        if self._model_forms is None or self._model_forms[0] is not server:  # the same for every client of a round
            self._model_forms = (server, forms_like(server.model))
        return MessageForm(self._model_forms[1], {"n": exactly(samples)})

    def declared_to_peer(self, server: Server, client: int, peer: int) -> MessageForm | None:
        """Return the form of a client's message to another in the next round; None: it may send nothing."""
        return None

    def declared_memory(self, server: Server, client: int, samples: int) -> MessageForm | None:
        """Return the form of a client's memory after the next round, where an evaluation reads it; None: finite."""
        return None

    def mismatch(self, update: Update) -> str | None:
        """Return why the message and the memory of an update contradict each other; None: they do not."""
        return None

    def row_bounds(self, message: Message) -> Mapping[str, float]:
        """Return how long a change one row makes to each tensor of the answer to a message, where noise covers sums.

        Raises:
            MethodError: the method does not say it.
        """
        raise MethodError(f"method {self.name!r} does not say what one row changes: set privacy.clip=none")

    def summed_rows(self, message: Message, client: Client) -> SummedRows | None:
        """Return the rows of which a client's answer to a message holds sums by group; None, the default: of none."""
        return None

    def continued(self, tensors: Tensors) -> Tensors | None:
        """Return the model with which a run goes on from another run's state; None, the default: it cannot.

        Methods that average networks need not say: they take the other run's network where its shapes fit.

        Args:
            tensors: of the other run's last state.
        """
        return None

    @abstractmethod
    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Return the next state. Updates come one at a time, in order of client id: do not collect them in a list."""

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """Return tensors that replace the model's wherever it is judged or served; by default none.

        A method that averages networks with BatchNorm returns the statistics over its clients' data
        (`shoal.methods.scores.recalibration`). The server that `evaluate`, `assignment` and `predictor` receive has
        these tensors; training continues without them.
        """
        return {}

    @abstractmethod
    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return metrics by name."""

    @classmethod
    def served(cls, server: Server, *, clients_told: bool) -> Server:
        """Return the part of the server that leaves the run with its model: by default all but `state`.

        Args:
            server: the state of a round.
            clients_told: whether information about single clients may leave (`tracking.clients`).
        """
        return replace(server, state={})

    def judged_part(self, server: Server, clients: Sequence[int]) -> Server:
        """Return the part of the server with which a site judges the samples of some clients: by default `served`."""
        return self.served(server, clients_told=False)

    def uses_offsets(self, server: Server) -> bool:
        """Return whether sites differ by offsets, which `site_predictor` takes away; by default not."""
        return False

    def site_predictor(self, server: Server, x: Tensor, memory: Mapping[str, Tensor]) -> Callable[[Tensor], Prediction]:
        """Return `predictor` for samples of one site.

        Args:
            server: the state.
            x: samples of the site, as of `Samples.x`, which tell of it.
            memory: the site's private memory, which tells more; empty where it is not here.
        """
        return self.predictor(server)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function from samples x (as of `Samples.x`) to clusters, soft assignments and embeddings.

        Raises:
            MethodError: the server of this method holds no model (each client keeps its own).
        """
        raise MethodError(f"the server of method {self.name!r} holds no model to predict with")

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment | None:
        """Return the cluster of every sample, as `evaluate` judges it, for the run's table of clusters.

        Returns:
            None, the default: the predictor's clusters (`shoal.methods.scores.assignment`). A method overrides this
                where a sample's cluster depends on the client that holds it.

        Raises:
            MethodError: samples have no cluster: each client keeps its own model, the number of clusters is not known,
                or the method learns from labels.
        """
        return None

    def figures(self, server: Server, client_names: Sequence[str]) -> dict[str, Figure]:
        """Return figures that only runs of this method have, by file name without suffix; by default none.

        Args:
            server: the last state of the run.
            client_names: names of the clients by id; there may be fewer names than clients.
        """
        return {}
