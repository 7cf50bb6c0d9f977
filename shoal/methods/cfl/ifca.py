"""IFCA (Ghosh et al. 2020), supervised: K models; each client trains the one with the lowest loss on its data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.setting import setting
from shoal.methods.averaging.chosen_models import average_by_choice, declared_choice
from shoal.methods.averaging.vectors import Vectors
from shoal.methods.cfl.supervised import Score, Supervised, judge
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message
from shoal.methods.contract.questions import Question
from shoal.methods.scores.clustering import ari
from shoal.methods.training.local_steps import LocalSteps, TakenSteps


@dataclass(frozen=True)
class IFCASettings:
    """Hyper-parameters of IFCA."""

    models: int = setting(4, "number of models K", ge=1)


class IFCA(Supervised):
    """IFCA as a method: the server state is K vectors (K, p), and its facts the planted groups, if there are any."""

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
        return Server({"models": torch.stack(models)}, facts={"truth": list(federation.truth)})

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

        def finish(taken: TakenSteps) -> Update:
            sent = Message({"weights": vectors.flatten(network)}, {"n": len(client.train), "choice": choice})
            return Update(sent, metrics={**taken.metrics, "choice": float(choice)})

        return self.epochs(vectors.load(network, models[choice]), client, finish)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average each model over the clients that chose it, by number of samples; a model without clients stays."""
        models, _ = average_by_choice(updates, server.model["models"], "weights", self.context.aggregation)
        return server.next({"models": models})

    def choice(self, network: nn.Module, models: Tensor, client: Client) -> int:
        """Return the model (K, p) with the lowest loss on a client's training samples; `network` gets its weights."""
        vectors = Vectors(network)
        losses = [judge(vectors.load(network, model), client.train, self.context).mean_loss for model in models]
        return min(range(len(losses)), key=losses.__getitem__)

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return each client's accuracy with the model of its choice, the models in use, and the groups' ARI."""
        network = self.network()
        vectors = Vectors(network)
        models = server.model["models"]
        scores: dict[int, Score] = {}
        choices = {}
        for client in clients:
            choices[client.id] = self.choice(network, models, client)
            vectors.load(network, models[choices[client.id]])
            scores[client.id] = judge(network, client.validation, self.context)
        metrics = {**self.clients_metrics(scores), "clusters": float(len(set(choices.values())))}
        if truth := server.facts["truth"]:
            groups = [truth[client] for client in choices]
            metrics["groups_ari"] = ari(np.array(groups), np.array(list(choices.values())))
        return metrics
