"""The base of methods whose server holds one network, which clients train on two views: averaging and recalibration."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from torch import nn

from shoal.methods.averaging.server_optimiser import next_average, trained_counts
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.scores.recalibration import recalibrate
from shoal.methods.training.local import load, seeded, weights
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.two_views import TwoViewMethod


class AveragedNetwork(TwoViewMethod):
    """A method whose server state is the weights of one network, the mean of those that clients have trained.

    A subclass implements `build` and `step_loss`. It overrides `prepare` where a client's steps use tensors of its own,
    `companions` where the loss asks other networks, and `local_steps` where weights stay with the client.
    """

    judges_features = True
    averages = True
    server_optimiser = True
    evaluation_reads_memory = False

    @abstractmethod
    def build(self) -> nn.Module:
        """Build the network; its initial weights come from torch's global generator."""

    def network(self) -> Any:
        """Return a fresh network with the run's initial weights."""
        return seeded(self.build, self.context, cache=self.network_cache)

    def loaded(self, tensors: Tensors) -> Any:
        """Return a network with weights that were broadcast, or that the server has."""
        network = self.network()
        load(network, tensors)
        return network

    def init_server(self, federation: Federation) -> Server:
        """Return the initial weights."""
        return Server(weights(self.network()))

    def prepare(self, message: Message, client: Client) -> Tensors:
        """Return tensors that every step of a client's round uses, the `extra` of `step_loss`; by default none."""
        return {}

    def companions(self, network: nn.Module, client: Client) -> dict[str, nn.Module]:
        """Return networks beside the one to train, by name, that the loss asks; by default none."""
        return {}

    def keeps_last_batch(self, message: Message) -> bool:
        """Return whether an epoch ends with a smaller batch of the remaining samples; by default they are left out."""
        return False

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Take local epochs from the broadcast weights."""
        network = self.loaded(message.tensors)

        def finish(taken: TakenSteps) -> Update:
            return self.trained(network, client, taken)

        return self.view_steps(
            client,
            network,
            finish,
            companions=self.companions(network, client),
            extra=self.prepare(message, client),
            keep_last=self.keeps_last_batch(message),
        )

    def trained(self, network: nn.Module, client: Client, taken: TakenSteps) -> Update:
        """Return a client's update after its steps: the trained weights and the number of samples."""
        return Update(Message(weights(network), {"n": len(client.train)}), metrics=taken.metrics)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Return the mean of the weights by number of samples."""
        return next_average(server, updates, self.context.aggregation, lambda: trained_counts(self.network()))

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """Return BatchNorm's statistics of the averaged network, on the clients' data."""
        return recalibrate(self.loaded(server.model), clients, evaluation, self.context)
