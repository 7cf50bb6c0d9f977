"""Which method for a set: what `method.name: auto` chooses for it and why, and the command that runs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.engine.settings.run_settings import Settings
from shoal.lifecycle.choosing_method import choose_method
from shoal.lifecycle.preparing import prepare_data, prepare_partition, with_scheme


@dataclass(frozen=True)
class Advice:
    """The answer to "which method?" for one set.

    Attributes:
        method: the name of the method.
        clients: how the samples are spread over the clients, in a sentence.
        reason: why this method.
        command: runs it.
    """

    method: str
    clients: str
    reason: str
    command: str


def advise(settings: Settings) -> Advice:
    """Return advice for the data set and the partition of some settings, whose method is auto.

    Raises:
        ShoalError: there is no such set, or it cannot be dealt to clients.
    """
    settings = with_scheme(settings)
    prepared = prepare_data(settings)
    _, table = prepare_partition(settings, prepared)
    choice = choose_method(settings, prepared, table)
    command = f"shoal run --set data.name={settings.data.name}"
    if prepared.spec.classes is None:
        command += " --set model.clusters=auto"
    return Advice(choice.method, sizes_of_clients(table.counts()), choice.reason, command)


def sizes_of_clients(counts: np.ndarray) -> str:
    """Return how many training samples clients have, in a sentence."""
    if len(counts) == 1:
        return "there is one client: nothing is federated, and scikit-learn finds the same clusters"
    sizes = f"{counts.min():,} to {counts.max():,} each (median {int(np.median(counts)):,})"
    if counts.min() == counts.max():
        sizes = f"{counts.min():,} each"
    return f"{counts.sum():,} training samples at {len(counts):,} clients, {sizes}"
