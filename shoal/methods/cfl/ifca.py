"""IFCA (Ghosh et al. 2020), supervised: K models; each client trains the one with the lowest loss on its data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from shoal.core.setting import setting
from shoal.methods.averaging.robust import mean_by
from shoal.methods.averaging.vectors import Vectors
from shoal.methods.cfl.adversary import ATTACKS, Attack, attack_of, corrupt
from shoal.methods.cfl.supervised import Score, Supervised, judge
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.declared import FactForm, MessageForm, TensorForm, exactly
from shoal.methods.contract.message import Message
from shoal.methods.scores.clustering import ari
from shoal.methods.training.local_steps import LocalSteps, TakenSteps


@dataclass(frozen=True)
class IFCASettings:
    """Hyper-parameters of IFCA, and planted adversaries."""

    models: int = setting(4, "number of models K", ge=1)
    adversaries: int = setting(0, "number of adversaries: that many clients, the last ones, send false updates", ge=0)
    attack: Attack = setting("mixed", ATTACKS)
    attack_scale: float = setting(10.0, "factor by which the attack scale multiplies updates", gt=0)


@dataclass(frozen=True)
class IFCAState:
    """The server's facts between rounds, JSON values on disk.

    Attributes:
        clients: how many there are.
        truth: the planted group of each; empty where none is planted.
        chosen: (client, model) of the last round.
    """

    clients: int
    truth: tuple[int, ...] = ()
    chosen: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_server(cls, server: Server) -> IFCAState:
        """The state in a server's facts."""
        f = server.facts
        return cls(f["clients"], tuple(f["truth"]), tuple((client, model) for client, model in f["chosen"]))

    def facts(self) -> dict[str, Any]:
        """The state as JSON values."""
        return {"clients": self.clients, "truth": list(self.truth), "chosen": [list(pair) for pair in self.chosen]}


class IFCA(Supervised):
    """IFCA as a method: server state is K vectors (K, p) and `IFCAState`; a model that nobody chose stays as it is."""

    name = "ifca"
    Settings = IFCASettings
    settings: IFCASettings
    averages_parts = True
    evaluation_reads_memory = False

    def init_server(self, federation: Federation) -> Server:
        """K independent random starts."""
        models = []
        for k in range(self.settings.models):
            network = self.network(f"init {k}")
            models.append(Vectors(network).flatten(network))
        state = IFCAState(federation.clients, tuple(federation.truth))
        return Server({"models": torch.stack(models)}, facts=state.facts())

    def broadcast(self, server: Server, client: int) -> Message:
        """All K models."""
        return Message(server.model, {"clients": IFCAState.from_server(server).clients})

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """One model, trained from any of the K."""
        models = server.model["models"]
        choice = FactForm(0, len(models) - 1, whole=True)
        weights = TensorForm(tuple(models.shape[1:]), start=models)
        return MessageForm({"weights": weights}, {"n": exactly(samples), "choice": choice})

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Choose the model with the lowest loss on the training samples, and train it."""
        self.check(client)
        s, models = self.settings, message.tensors["models"]
        vectors = Vectors(network := self.network())
        losses = [judge(vectors.load(network, m), client.train, self.context).mean_loss for m in models]
        choice = min(range(len(losses)), key=losses.__getitem__)

        attack = attack_of(client.id, message.facts["clients"], s.adversaries, s.attack)

        def finish(taken: TakenSteps) -> Update:
            weights = vectors.flatten(network)
            if attack is not None:
                update = corrupt(weights - models[choice], attack, s.attack_scale, client.streams, models[choice])
                weights = models[choice] + update
            sent = Message({"weights": weights}, {"n": len(client.train), "choice": choice})
            return Update(sent, metrics={**taken.metrics, "choice": float(choice)})

        return self.epochs(vectors.load(network, models[choice]), client, finish, reverse=attack == "labels")

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """The mean of each model over those who chose it, by number of samples."""
        means = [mean_by(self.context.aggregation, {"weights": model}) for model in server.model["models"]]
        chosen: list[tuple[int, int]] = []
        for update in updates:
            choice = update.message.facts["choice"]
            means[choice].add(update.message.tensors, float(update.message.facts["n"]))
            chosen.append((update.client, choice))
        models = [
            mean.mean()["weights"] if mean.weight else old
            for mean, old in zip(means, server.model["models"], strict=True)
        ]
        state = replace(IFCAState.from_server(server), chosen=tuple(chosen))
        return server.next({"models": torch.stack(models)}, facts=state.facts())

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Each honest client's accuracy with the model it would choose; models in use; ARI with the planted groups."""
        vectors = Vectors(network := self.network())
        scores: dict[int, Score] = {}
        choices = []
        for k in range(len(clients) - self.settings.adversaries):
            client = clients[k]
            found = [
                judge(vectors.load(network, model), client.train, self.context).mean_loss
                for model in server.model["models"]
            ]
            choices.append(min(range(len(found)), key=found.__getitem__))
            vectors.load(network, server.model["models"][choices[-1]])
            scores[k] = judge(network, client.validation, self.context)
        metrics = {**self.clients_metrics(scores), "clusters": float(len(set(choices)))}
        if truth := IFCAState.from_server(server).truth:
            metrics["groups_ari"] = ari(torch.tensor(truth[: len(choices)]).numpy(), torch.tensor(choices).numpy())
        return metrics
