"""IFCA (Ghosh et al. 2020), supervised: K models; each client trains the one with the lowest loss on its data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.setting import setting
from shoal.methods.averaging.chosen_models import average_by_choice, declared_choice
from shoal.methods.averaging.vectors import Vectors
from shoal.methods.cfl.adversary import AdversarySettings, attack_of, corrupt
from shoal.methods.cfl.supervised import Score, Supervised, judge
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message
from shoal.methods.contract.questions import Question
from shoal.methods.scores.clustering import ari
from shoal.methods.training.local_steps import LocalSteps, TakenSteps


@dataclass(frozen=True)
class IFCASettings(AdversarySettings):
    """Hyper-parameters of IFCA."""

    models: int = setting(4, "number of models K", ge=1)


@dataclass(frozen=True)
class IFCAState:
    """The server's facts between rounds, JSON values on disk.

    Attributes:
        clients: number of clients.
        truth: the planted group of each client; empty where none is planted.
        chosen: (client, model) of the last round.
    """

    clients: int
    truth: tuple[int, ...] = ()
    chosen: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_server(cls, server: Server) -> IFCAState:
        """Read the state from a server's facts."""
        facts = server.facts
        chosen = tuple((client, model) for client, model in facts["chosen"])
        return cls(facts["clients"], tuple(facts["truth"]), chosen)

    def facts(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"clients": self.clients, "truth": list(self.truth), "chosen": [list(pair) for pair in self.chosen]}


class IFCA(Supervised):
    """IFCA as a method: the server state is K vectors (K, p) and `IFCAState`."""

    name = "ifca"
    title = "IFCA"
    question = Question.CLIENTS
    about = "Several models; each client trains the one that fits it best."
    Settings = IFCASettings
    settings: IFCASettings
    averages_parts = True
    evaluation_reads_memory = False

    def init_server(self, federation: Federation) -> Server:
        """Draw K independent random starts."""
        models = []
        for k in range(self.settings.models):
            network = self.network(f"init {k}")
            models.append(Vectors(network).flatten(network))
        state = IFCAState(federation.clients, tuple(federation.truth))
        return Server({"models": torch.stack(models)}, facts=state.facts())

    def broadcast(self, server: Server, client: int) -> Message:
        """Send all K models."""
        return Message(server.model, {"clients": IFCAState.from_server(server).clients})

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare one model that was trained from any of the K."""
        return declared_choice(server.model["models"], "weights", samples)

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Choose the model with the lowest loss on the training samples, and train it."""
        self.check(client)
        network = self.network()
        vectors = Vectors(network)
        models = message.tensors["models"]
        choice = self.choice(network, models, client)
        attack = attack_of(client.id, message.facts["clients"], self.settings.adversaries)

        def finish(taken: TakenSteps) -> Update:
            weights = vectors.flatten(network)
            if attack is not None:
                update = corrupt(weights - models[choice], attack, client.streams, models[choice])
                weights = models[choice] + update
            sent = Message({"weights": weights}, {"n": len(client.train), "choice": choice})
            return Update(sent, metrics={**taken.metrics, "choice": float(choice)})

        return self.epochs(vectors.load(network, models[choice]), client, finish, reverse=attack == "labels")

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average each model over the clients that chose it, by number of samples; a model without clients stays."""
        models, chosen = average_by_choice(updates, server.model["models"], "weights", self.context.aggregation)
        state = replace(IFCAState.from_server(server), chosen=tuple(chosen))
        return server.next({"models": models}, facts=state.facts())

    def choice(self, network: nn.Module, models: Tensor, client: Client) -> int:
        """Return the model (K, p) with the lowest loss on a client's training samples; `network` gets its weights."""
        vectors = Vectors(network)
        losses = [judge(vectors.load(network, model), client.train, self.context).mean_loss for model in models]
        return min(range(len(losses)), key=losses.__getitem__)

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return each honest client's accuracy with the model of its choice, the models in use, and the groups' ARI."""
        network = self.network()
        vectors = Vectors(network)
        models = server.model["models"]
        scores: dict[int, Score] = {}
        choices = []
        for k in range(len(clients) - len(self.settings.adversaries)):
            client = clients[k]
            choices.append(self.choice(network, models, client))
            vectors.load(network, models[choices[-1]])
            scores[k] = judge(network, client.validation, self.context)
        metrics = {**self.clients_metrics(scores), "clusters": float(len(set(choices)))}
        if truth := IFCAState.from_server(server).truth:
            metrics["groups_ari"] = ari(torch.tensor(truth[: len(choices)]).numpy(), torch.tensor(choices).numpy())
        return metrics
