"""Local training alone, the baseline of federation: every client trains its own model and sends nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.methods.averaging.vectors import Vectors
from shoal.methods.cfl.supervised import Supervised, judge
from shoal.methods.contract.base import Client, Clients, Evaluation, Server, Update
from shoal.methods.contract.declared import MessageForm, TensorForm
from shoal.methods.contract.message import Message
from shoal.methods.contract.questions import Question
from shoal.methods.training.local_steps import LocalSteps, TakenSteps


@dataclass(frozen=True)
class LocalOnlySettings:
    """Local training has no hyper-parameters beyond `local`."""


class LocalOnly(Supervised):
    """Local training as a method: each client's weights are its private memory; all start from the same."""

    name = "local_only"
    title = "local training"
    question = Question.CLIENTS
    about = "Each client trains alone: what federation must beat."
    local_options = ("steps",)  # nothing is sent that a client could stay near
    Settings = LocalOnlySettings

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare an empty message."""
        return MessageForm()

    def declared_memory(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare the client's model."""
        network = self.network()
        return MessageForm({"weights": TensorForm(tuple(Vectors(network).flatten(network).shape))})

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Return local epochs from the client's own weights."""
        self.check(client)
        network = self.network()
        vectors = Vectors(network)
        if client.memory:
            vectors.load(network, client.memory["weights"])

        def finish(taken: TakenSteps) -> Update:
            return Update(Message(), memory={"weights": vectors.flatten(network)}, metrics=taken.metrics)

        return self.epochs(network, client, finish)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Count the round; the updates hold no weights."""
        for _ in updates:
            pass
        return server.next({})

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Judge each client's own model on its own validation samples."""
        network = self.network()
        vectors = Vectors(network)
        scores = {}
        for client in clients:
            if client.memory:
                vectors.load(network, client.memory["weights"])
                scores[client.id] = judge(network, client.validation, self.context)
        return self.clients_metrics(scores)
