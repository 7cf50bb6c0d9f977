"""FedAvg with planted adversaries, against which rules of aggregation are compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shoal.methods.cfl.fedavg import FedAvg
from shoal.methods.cfl.supervised import judge
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Server
from shoal.methods.contract.message import Message
from shoal.methods.training.local_steps import LocalSteps
from shoal_research.variants.adversary import AdversarySettings, attack_of, attacked_steps, check_adversaries


class AttackedFedAvg(FedAvg):
    """FedAvg whose last clients send what they have not learned; without adversaries it is FedAvg."""

    name = "fedavg_attacked"
    title = "FedAvg under attack"
    about = "FedAvg with planted adversaries."
    Settings = AdversarySettings  # type: ignore[assignment]
    settings: AdversarySettings  # type: ignore[assignment]

    def __init__(self, settings: AdversarySettings, context: Any) -> None:
        super().__init__(settings, context)
        check_adversaries(settings.adversaries, context)

    def init_server(self, federation: Federation) -> Server:
        """Start from the initial weights, and know how many clients there are."""
        return replace(super().init_server(federation), facts={"clients": federation.clients})

    def broadcast(self, server: Server, client: int) -> Message:
        """Send the weights, and how many clients there are."""
        return Message(server.model, {"clients": server.facts["clients"]})

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Return FedAvg's steps, attacked where the client is an adversary."""
        steps = super().local_steps(message, client)
        attack = attack_of(client.id, message.facts["clients"], self.settings.adversaries)
        if attack is None:
            return steps
        return attacked_steps(steps, attack, "weights", message.tensors["weights"], self.context, difference=False)

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return accuracy and loss on the validation samples of the honest clients."""
        network = self.loaded(server.model["weights"])
        honest = range(len(clients) - len(self.settings.adversaries))
        return self.clients_metrics({k: judge(network, clients[k].validation, self.context) for k in honest})
