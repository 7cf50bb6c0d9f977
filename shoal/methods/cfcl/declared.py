"""What a CF-CL device may send and keep: reserves, pulled samples and models to neighbours, weights to the server."""

from __future__ import annotations

from typing import Any

import torch

from shoal.methods.cfcl.links import live_neighbours
from shoal.methods.cfcl.state import CFCLState, Plan
from shoal.methods.contract.base import Server
from shoal.methods.contract.declared import FactForm, MessageForm, TensorForm, exactly
from shoal.methods.training.steps import GradientMethod

PLANTED = "planted"
"""The tensor of the planted transformation of each sample that is sent."""


class DeclaredExchange(GradientMethod):
    """The forms of CF-CL's messages, of which `CFCL` is the method."""

    settings: Any
    """`shoal.methods.cfcl.settings.CFCLSettings`."""
    plan: Plan
    averages_parts = True

    def stage(self, server: Server) -> str:
        """Push, pull or train."""
        return CFCLState.from_server(server).next

    def steps_after(self, state: CFCLState) -> int:
        """Local steps done once the round after `state` is over."""
        return state.step + (self.plan.stretch(state.step) if state.next == "train" else 0)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """The number of samples; where an averaging follows, also the weights and the mean number of points held."""
        state, s = CFCLState.from_server(server), self.settings
        facts = {"n": exactly(samples)}
        after = self.steps_after(state)
        if state.next != "train" or (after % s.tau_a and after != s.steps):
            return MessageForm({}, facts)
        links = sum(client in edge for edge in state.edges)
        pulls = 1 if s.buffer == "purge" else 1 + after // s.tau_p
        facts["points"] = FactForm(least=1, most=samples + links * pulls * s.budget)
        weights = server.model["weights"]
        return MessageForm({"weights": TensorForm(tuple(weights.shape), start=weights)}, facts)

    def declared_to_peer(self, server: Server, client: int, peer: int) -> MessageForm | None:
        """To a neighbour, by what the round is: a reserve, the samples that it pulls, or the model to choose by."""
        state, s, indices = CFCLState.from_server(server), self.settings, self.context.spec.train
        if peer not in live_neighbours(state, s.failed, client):
            return None
        if state.next == "push":
            return _of_samples("reserve", s.reserve, indices, {})
        if state.next == "pull":
            return _of_samples("pulled", s.budget, indices, {"round": exactly(server.round + 1)})
        after = self.steps_after(state)
        if s.selection == "cfcl" and s.model == "local" and after % s.tau_p == 0 and after < s.steps:
            return MessageForm({"model": TensorForm(tuple(server.model["weights"].shape))})
        return None

    def declared_memory(self, server: Server, client: int, samples: int) -> MessageForm:
        """The local model, and what was pulled: both are read where devices are judged."""
        shape = tuple(server.model["weights"].shape)
        held = TensorForm((range(2**31), 2), torch.int64, least=0, most=self.context.spec.train - 1)
        forms = {"weights": TensorForm(shape), "global": TensorForm(shape), "pulled": held}
        return MessageForm(forms, optional=("pulled",), others=True)


def _of_samples(kind: str, most: int, indices: int, facts: dict[str, FactForm]) -> MessageForm:
    """A message of samples, and of the planted transformation of each where any were planted."""
    planted = TensorForm((range(most + 1),), torch.int16, least=0)
    return MessageForm({PLANTED: planted}, facts, {kind: most}, indices, (PLANTED,), planted=PLANTED)
