"""Messages of UIFCA with one trunk, and the server's computations on them.

A round has one of three purposes (`State.phase`), each with its own form of the clients' messages. Symbols in shapes: n
points, K clusters, d dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.methods.contract.base import Server, Update
from shoal.methods.contract.context import Context, MethodError
from shoal.methods.contract.declared import FactForm, MessageForm, TensorForm, exactly, forms_like
from shoal.methods.contract.message import Tensors
from shoal.methods.uifca.declared import centres_form
from shoal_research.variants.latent_mixture import LOG_DEVIATIONS, MEANS

OFFSETS = "offsets"
"""Tensor of the model (K,), subtracted from scaled log-densities."""
BALANCE = 0.5
"""How far the server evens out the sizes of the clusters over all clients in a round."""
MIN_DEVIATION = 1e-2
"""Added to the deviations that the Gaussians begin with."""
Phase = Literal["centres", "moments", "learn"]


@dataclass(frozen=True)
class State:
    """The purpose of a round, on the server and in its messages.

    Attributes:
        phase: collect k-FED's centres, then the moments of its clusters in the latent space, then learn.
        cluster_round: number of finished cluster rounds.
        comm_round: number of finished communication rounds of the present cluster round.
    """

    phase: Phase = "centres"
    cluster_round: int = 0
    comm_round: int = 0

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> State:
        """Read the state from the facts of a server or a message."""
        return cls(**facts)

    def facts(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return dict(vars(self))


def form_of(server: Server, samples: int, context: Context) -> MessageForm:
    """Declare local centres, moments, or a trained mixture, by the purpose of the round.

    Args:
        server: the state before the round.
        samples: number of the client's samples.
        context: of the run.
    """
    clusters = context.clusters
    dimensions = math.prod(context.spec.shape)
    state = State.from_facts(server.facts)
    if state.phase == "centres":
        return centres_form(clusters, dimensions)
    facts = {
        "n": exactly(samples),
        "counts": FactForm(0, samples, whole=True, length=clusters),
        "changed": FactForm(0, samples, whole=True),
    }
    if state.phase == "moments":
        forms = {
            "total": TensorForm((clusters, dimensions)),
            "squares": TensorForm((clusters, dimensions), minimum=0),
        }
        return MessageForm(forms, facts)
    full = TensorForm((clusters,), minimum=0, maximum=float(samples), measured=False)
    forms = forms_like(mixture_of(server.model)) | {"fullness": full}
    return MessageForm(forms, facts)


def mixture_of(tensors: Tensors) -> Tensors:
    """Return the tensors of the mixture among those of the server or a message."""
    return {k: t for k, t in tensors.items() if k != OFFSETS and not k.startswith("labels")}


def gaussians(updates: Iterable[Update]) -> Tensors:
    """Return mean and log-deviation of each cluster over all clients' points in the latent space, (K, d) each.

    A cluster without points begins as the Gaussian of all of them.
    """
    zero = torch.zeros((), dtype=torch.float64)
    total = zero
    squares = zero
    counts = zero
    for update in updates:
        total = total + update.message.tensors["total"].double()
        squares = squares + update.message.tensors["squares"].double()
        counts = counts + torch.tensor(update.message.facts["counts"], dtype=torch.float64)
    if not counts.sum():
        raise MethodError("no client of this round took part in k-FED's round: raise participation.fraction")
    filled = (counts > 0)[:, None]
    number = torch.where(filled, counts[:, None], counts.sum())
    mean = torch.where(filled, total, total.sum(0)) / number
    variance = (torch.where(filled, squares, squares.sum(0)) / number - mean.square()).clamp_min(0)
    return {MEANS: mean.float(), LOG_DEVIATIONS: (variance.sqrt() + MIN_DEVIATION).log().float()}


def moved_offsets(offsets: Tensor, fullness: Tensor) -> Tensor:
    """Return offsets (K,) moved by `BALANCE` times the log of a cluster's size over an even share.

    Args:
        offsets: so far.
        fullness: summed posteriors over the points of all clients of the round, (K,).

    >>> moved_offsets(torch.zeros(2), torch.tensor([3.0, 1.0])).exp()
    tensor([1.2247, 0.7071])
    """
    share = fullness.double() / fullness.double().sum().clamp_min(1e-12)
    return (offsets.double() + BALANCE * (share * len(share)).clamp_min(1e-3).log()).float()
