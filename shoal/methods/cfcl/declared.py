"""The form of what a CF-CL device sends and keeps: reserves, pulled samples and models to neighbours, weights up."""

from __future__ import annotations

from typing import Any

import torch

from shoal.methods.cfcl.links import device_neighbours
from shoal.methods.cfcl.state import CFCLState, Plan
from shoal.methods.contract.base import Server
from shoal.methods.contract.declared import FactForm, MessageForm, TensorForm, exactly
from shoal.methods.training.steps import GradientMethod

PLANTED = "planted"
"""The tensor of the planted transformation of each sample that is sent."""


class DeclaredExchange(GradientMethod):
    """The forms of CF-CL's messages; `CFCL` is the method."""

    settings: Any
    """`shoal.methods.cfcl.settings.CFCLSettings`."""
    plan: Plan
    averages_parts = True

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of the fact `n` and, where an averaging follows, of the weights and the mean points held."""
        state = CFCLState.from_server(server)
        facts = {"n": exactly(samples)}
        if state.next != "train" or not self.plan.averages_at(self.plan.step_after(state)):
            return MessageForm({}, facts)
        degree = sum(client in edge for edge in state.edges)
        facts["points"] = FactForm(minimum=1, maximum=samples + degree * self.settings.budget)
        weights = server.model["weights"]
        return MessageForm({"weights": TensorForm(tuple(weights.shape), start=weights)}, facts)

    def declared_to_peer(self, server: Server, client: int, peer: int) -> MessageForm | None:
        """Return the form of a reserve, of pulled samples, or of the model that a neighbour chooses by."""
        state = CFCLState.from_server(server)
        indices = self.context.spec.train
        if peer not in device_neighbours(state, client):
            return None
        if state.next == "push":
            return _samples_form("reserve", self.settings.reserve, indices, {})
        if state.next == "pull":
            return _samples_form("pulled", self.settings.budget, indices, {"round": exactly(server.round + 1)})
        if self.plan.models_needed_at(self.plan.step_after(state)):
            return MessageForm({"model": TensorForm(tuple(server.model["weights"].shape))})
        return None

    def declared_memory(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of the local model and of the pulled samples, which an evaluation reads."""
        shape = tuple(server.model["weights"].shape)
        pulled = TensorForm((range(2**31), 2), torch.int64, minimum=0, maximum=self.context.spec.train - 1)
        forms = {"weights": TensorForm(shape), "global": TensorForm(shape), "pulled": pulled}
        return MessageForm(forms, optional=("pulled",), others=True)


def _samples_form(kind: str, max_samples: int, indices: int, facts: dict[str, FactForm]) -> MessageForm:
    """Return the form of a message of samples, and of the planted transformation of each where any were planted."""
    planted = TensorForm((range(max_samples + 1),), torch.int16, minimum=0)
    return MessageForm({PLANTED: planted}, facts, {kind: max_samples}, indices, (PLANTED,), planted=PLANTED)
