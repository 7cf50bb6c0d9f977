"""The contract of a federated system: a round is one exchange of messages, and the engine is the network.

A system is a `Method`: what the server holds before round 1, who takes part in a round, what each is sent, what a
client does with it, how the server folds the answers into its next state, and how that state is judged. All that
travels is a `Message`, so bytes (and the delay they imply) are counted for every method alike. A client's private
memory stays with the client; its inbox holds what other clients sent it.

Symbols in shapes: n samples, c clusters, d features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from shoal.core.errors import ShoalError
from shoal.core.streams import Streams
from shoal.data.prepared import DataSpec
from shoal.data.view import DeviceData, Samples
from shoal.methods.contract.context import Context, LocalSettings, MethodError, ModelSettings
from shoal.methods.contract.declared import MessageForm, TensorForm, exactly, forms_like
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Assignment, Prediction, ShardPredictions, Shared
from shoal.models.encoders import ENCODERS

if TYPE_CHECKING:  # needed by hooks for people alone: training does without
    from matplotlib.figure import Figure
    from pandas import DataFrame


class ClientError(ShoalError):
    """A client cannot do its part of the round: it is retried, then left out."""


@dataclass(frozen=True)
class Server:
    """The server's state between rounds.

    Attributes:
        model: what clients receive and answer, and what is judged and served: weights, K stacked models, centres.
        state: whatever else the server keeps: momentum of a server optimiser, cached updates, labels. No name of
            `model` occurs in it.
        facts: JSON values: a step counter, a tree of clusters, who is present.
        round: rounds done so far; 0 before the first.
        finished: no further round is needed; the engine stops here.
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
        """Return the state after one more round; state and facts stay as they are where none are given."""
        return Server(
            model,
            self.state if state is None else state,
            self.facts if facts is None else facts,
            self.round + 1,
            finished,
        )

    def with_model(self, tensors: Tensors) -> Server:
        """Return the same state with some tensors of the model exchanged by name."""
        return replace(self, model={**self.model, **tensors})


@dataclass(frozen=True)
class Client:
    """One client as its worker sees it.

    Attributes:
        id: its number, 0 to K - 1; the same for the whole run.
        train, validation: its samples.
        memory: private tensors it returned in an earlier round; empty at first.
        inbox: messages from other clients since it last took part, as (sender, message), by round then sender.
        streams: its random streams of this round.
    """

    id: int
    train: Samples
    validation: Samples
    memory: Tensors
    inbox: tuple[tuple[int, Message], ...]
    streams: Streams


@dataclass(frozen=True)
class Update:
    """What `client_update` returns.

    Attributes:
        message: to the server.
        peers: to other clients, by id; they find it in their inbox when they next take part.
        memory: the client's new private memory, or None where it did not change.
        metrics: numbers about the local work (loss, ...), kept per client and round.
        client: set by the engine.
        summed: set by the engine: clients whose messages this is the sum of (float64; tensors times the fact `n`).
    """

    message: Message
    peers: dict[int, Message] = field(default_factory=dict)
    memory: Tensors | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    client: int = -1
    summed: tuple[int, ...] = ()


class Clients(ABC):
    """All clients of a federation, each loaded when asked for (an evaluation may need none, one or all)."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, client: int) -> Client:
        """The client with its current memory."""

    def __iter__(self) -> Iterator[Client]:
        return (self[client] for client in range(len(self)))


@dataclass(frozen=True)
class Federation:
    """What the server knows of the federation before round 1.

    Attributes:
        spec: the data set's kind and shape.
        sizes: training samples of each client.
        streams: the server's random streams.
        truth: the planted group of each client, where one was planted: for scoring only.
        quarantined: clients that are not asked any more, since their messages were refused too often.
    """

    spec: DataSpec
    sizes: tuple[int, ...]
    streams: Streams
    truth: tuple[int, ...] = ()
    quarantined: frozenset[int] = frozenset()

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.sizes)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation works on.

    Attributes:
        data: the whole set on the device; its test part is never trained on.
        train: every training sample that some client holds.
        streams: random streams of this evaluation.
        final: the run's last evaluation: also compute what is too dear for every round.
        batch: samples per forward pass.
        recalibrate: about how many training samples BatchNorm's statistics are found on before an averaged network is
            judged; 0: it is judged with the averaged statistics.
        brief: only what a second judgement beside the first is for: `acc`, `knn`, `probe` and `uniformity`.
        seen: what workers made of all samples in parts, in order (see `Method.shared_in_evaluation`); None: nobody has.
    """

    data: DeviceData
    train: Samples
    streams: Streams
    final: bool = False
    batch: int = 512
    recalibrate: int = 0
    brief: bool = False
    seen: Callable[[], Iterator[ShardPredictions]] | None = None


@dataclass(frozen=True)
class RunHistory:
    """A run as its method draws it: loaded tables and states, so that a method reads no file.

    Attributes:
        rounds: a row a round: `round`, bytes, seconds, and the metrics of `evaluate` where it was evaluated.
        updates: a row a round and client: `round`, `client`, bytes, seconds, and the metrics of `client_update`.
        client_names: what the clients are called, in the order of their ids; may be shorter than there are clients.
        class_names: what the classes are called; empty where the data have no labels.
        server: the newest state; None before the first checkpoint.
        clients: all clients with their memories under that state, each loaded when asked for.
    """

    rounds: DataFrame
    updates: DataFrame
    client_names: tuple[str, ...]
    class_names: tuple[str, ...]
    server: Server | None
    clients: Clients


class Method(ABC):
    """A federated system. A subclass with its settings dataclass is all that the engine needs.

    Class attributes:
        name: as in `method.name` of the settings.
        Settings: its frozen dataclass of hyper-parameters.
        pooled: all data is given to one client (centralised references).
        local_defaults, model_defaults: what `local` and `model` are where the settings do not say.
        kinds: the kinds of data it works on.
        exchange_metric: the metric of `client_update` that is above 0 where a client only chose samples for its peers,
            so that simulated delays count its seconds and bytes as such; empty: it never does.
        needs_validation: every client must hold out validation samples.

    What a method can do, said by the method and read by the tests that hold for every method:
        trains: a client's work is gradient steps, and its metrics have their mean `loss`.
        warmup_rounds: the number of rounds before training that collect what it starts from, without clusters yet.
        loss_falls: the loss is the same function in every round, so that training lowers it. Not so where its
            parts are weighed anew from round to round, or where networks play against each other.
        learns_from_labels: the labels of the training samples are what is learnt.
        finds_clusters: every evaluation judges the cluster of each sample: `clusters_used`, and with labels `acc`,
            `nmi`, `ari` and `purity`.
        judges_features: the last evaluation judges what the model makes of samples: `effective_rank`, `uniformity`,
            and with labels `knn` and `probe`; of a method that trains also `alignment`.
        averages: the next model is the mean of the clients' models, weighted by the fact `n` of their messages, or what
            `aggregation.rule` puts in its place, moved by the server's optimiser
            (`shoal.methods.averaging.server_optimiser`); `aggregate` takes sums too (`shoal.methods.averaging.robust`).
        averages_parts: it averages models of which clients train some, or in some rounds: `aggregation` is of it too.
        server_optimiser: `aggregation.server` moves its model.
        proximal: `local.proximal` holds its local steps near the model that the server sent.
        trains_encoder: `model.encoder` names a network that clients train; if not, it may be a frozen one.
        evaluation_reads_memory: `recalibrate`, `evaluate` or `assignment` may read a client's memory or inbox. If
            not, both are empty there, and the clients' memories need not travel to the worker that evaluates.
        shared_in_evaluation: what `evaluate` uses of the predictor's answers for all samples, which workers may then
            make in parts: `clusters` as `evaluate_predictor`, `features` as `evaluate_features` in the last evaluation.
    A method whose server holds one model overrides `predictor`.
    """

    name: ClassVar[str]
    Settings: ClassVar[type]
    pooled: ClassVar[bool] = False
    local_defaults: ClassVar[LocalSettings] = LocalSettings()
    model_defaults: ClassVar[ModelSettings] = ModelSettings()
    kinds: ClassVar[tuple[str, ...]] = ("image",)
    exchange_metric: ClassVar[str] = ""
    needs_validation: ClassVar[bool] = False
    trains: ClassVar[bool] = True
    warmup_rounds: ClassVar[int] = 0
    loss_falls: ClassVar[bool] = True
    learns_from_labels: ClassVar[bool] = False
    finds_clusters: ClassVar[bool] = True
    judges_features: ClassVar[bool] = False
    averages: ClassVar[bool] = False
    averages_parts: ClassVar[bool] = False
    server_optimiser: ClassVar[bool] = False
    proximal: ClassVar[bool] = False
    trains_encoder: ClassVar[bool] = True
    evaluation_reads_memory: ClassVar[bool] = True
    shared_in_evaluation: ClassVar[Shared] = "nothing"

    def __init__(self, settings: Any, context: Context) -> None:
        if context.spec.kind not in self.kinds:
            raise MethodError(
                f"method {self.name!r} works on {' and '.join(self.kinds)} data, "
                f"and {context.spec.name!r} is {context.spec.kind} data"
            )
        if not (context.aggregation.is_mean or self.averages or self.averages_parts):
            raise MethodError(f"aggregation.rule and clip are of averaged models: method {self.name!r} averages none")
        if context.aggregation.server.name != "none" and not self.server_optimiser:
            raise MethodError(
                f"aggregation.server moves one model that is averaged every round, and method {self.name!r} has none: "
                "set aggregation.server.name=none"
            )
        if context.local.proximal and not self.proximal:
            raise MethodError(
                f"local.proximal holds gradient steps near the model that the server sent, and method {self.name!r} "
                "takes none from it: set local.proximal=0"
            )
        if self.trains_encoder and context.spec.kind == "image" and context.model.encoder not in ENCODERS:
            raise MethodError(
                f"method {self.name!r} trains its encoder, and {context.model.encoder!r} is never trained: set "
                f"model.encoder to one of {', '.join(ENCODERS)}, or take method fedkmeans"
            )
        self.settings = settings
        self.context = context
        self.drawn: dict[str, nn.Module] = {}
        """Networks with their initial weights, by purpose (see `shoal.methods.training.local.seeded`)."""
        self._like: tuple[Server, dict[str, TensorForm]] | None = None
        if self.needs_clusters:
            _ = context.clusters  # refuses data of which nobody says how many clusters to find

    @classmethod
    def local_defaults_for(cls, settings: Any, kind: str | None) -> LocalSettings:
        """What `local` is where the settings do not say: `local_defaults`, unless they depend on what is trained.

        Args:
            settings: the method's.
            kind: of the data, where the name of the set tells it; None of a set of the user's own.
        """
        return cls.local_defaults

    @property
    def needs_clusters(self) -> bool:
        """Whether the method must know how many clusters to find."""
        return True

    @abstractmethod
    def init_server(self, federation: Federation) -> Server:
        """The server's state before round 1."""

    def sample_clients(self, server: Server, federation: Federation) -> list[int]:
        """Who takes part in the round that follows `server`: a seeded draw of `fraction` of the clients."""
        away = sorted(client for client in federation.quarantined if client < federation.clients)
        there = federation.clients - len(away)
        count = min(there, max(1, round(self.context.fraction * there)))
        rng = replace(federation.streams, round=server.round + 1).numpy("participation")
        # Places among those that are there: a draw of few costs the same however many there are.
        drawn = range(there) if count >= there else rng.choice(there, count, replace=False).tolist()
        chosen = sorted(drawn)
        for client in away:
            chosen = [place + (place >= client) for place in chosen]
        return chosen

    def stage(self, server: Server) -> str:
        """The kind of round that follows `server`; of one kind, a client takes about equally long (for deadlines)."""
        return ""

    @abstractmethod
    def broadcast(self, server: Server, client: int) -> Message:
        """The message from the server to one client."""

    @abstractmethod
    def client_update(self, message: Message, client: Client) -> Update:
        """The client's work of one round.

        Raises:
            ClientError: this client cannot do it (no sample, a loss that is not finite).
        """

    def cohort_update(self, cohort: Sequence[tuple[Message, Client]]) -> list[Update | Exception]:
        """The work of several clients, in one computation where the method has one; here client after client.

        Of each message and client its update, or why there is none. Both ways agree up to rounding.
        """
        found: list[Update | Exception] = []
        for message, client in cohort:
            try:
                found.append(self.client_update(message, client))
            except Exception as error:  # one client's fault is not the others'
                found.append(error)
        return found

    def declared(self, server: Server, client: int, samples: int) -> MessageForm | None:
        """What a client's message to the server must be in the round that follows `server`.

        By default, of a method that `averages`: tensors like the model's, and the fact `n`. None: only what holds for
        every message is asked, that it is finite. Whoever's message is otherwise is left out of the round.

        Args:
            server: the state before the round.
            client: its id.
            samples: how many training samples it has.
        """
        if not self.averages:
            return None
        if self._like is None or self._like[0] is not server:  # the same for every client of a round
            self._like = (server, forms_like(server.model))
        return MessageForm(self._like[1], {"n": exactly(samples)})

    def declared_to_peer(self, server: Server, client: int, peer: int) -> MessageForm | None:
        """What a client's message to another must be in that round; None, by default: it may send it nothing."""
        return None

    def declared_memory(self, server: Server, client: int, samples: int) -> MessageForm | None:
        """What the memory that a client keeps after that round must be, where anybody else reads it; None: finite."""
        return None

    def mismatch(self, update: Update) -> str | None:
        """Why the message and the memory of an answer cannot belong together; None: nothing tells against it."""
        return None

    @abstractmethod
    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """The next state, from the updates in order of client id. Updates arrive one at a time: do not collect them."""

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """Tensors that stand in place of the model's wherever it is judged or served; by default none.

        Averaged networks with BatchNorm give their clients' statistics here (`shoal.methods.scores.recalibration`).
        Training goes on from the state as it was; `evaluate`, `assignment` and `predictor` are given these tensors in
        it.
        """
        return {}

    @abstractmethod
    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Metrics by name."""

    @classmethod
    def served(cls, server: Server, *, clients_told: bool) -> Server:
        """Return what of the server leaves the run with its model: by default the model without the server's state.

        Args:
            server: the state of a round.
            clients_told: whether anything of single clients may leave (`tracking.clients`).
        """
        return replace(server, state={})

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """A function from samples x (as `Samples.x` gives them) to clusters, soft assignments and embeddings.

        Raises:
            MethodError: the server of this method holds no model (each client keeps its own).
        """
        raise MethodError(f"the server of method {self.name!r} holds no model to predict with")

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment | None:
        """The clusters that `evaluate` judges, sample by sample: what a run's cluster table shows.

        Returns:
            None: as `predictor` says (`shoal.methods.scores.assignment`). Clusters that depend on who holds a sample
                are said here.

        Raises:
            MethodError: no cluster of a sample is defined: each client keeps its own model, nobody knows how many
                clusters there are, or the method learns from labels.
        """
        return None

    def figures(self, history: RunHistory) -> dict[str, Figure]:
        """Figures that only runs of this method have, by file name without suffix; none here."""
        return {}

    def tables(self, history: RunHistory) -> dict[str, DataFrame]:
        """Tables that only runs of this method have, by file name without suffix; none here."""
        return {}
