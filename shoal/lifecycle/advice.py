"""Which method for a set: what `method.name: auto` chooses for it and why."""

from __future__ import annotations

import numpy as np

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.method_choice import MethodChoice
from shoal.lifecycle.choosing_method import choose_method
from shoal.lifecycle.preparing import prepare_data, prepare_partition, with_scheme


def advise(settings: Settings) -> tuple[MethodChoice, str]:
    """Return the method for some settings, whose method is auto, and how the samples are spread over the clients.

    Raises:
        ShoalError: there is no such set, or it cannot be dealt to clients.
    """
    settings = with_scheme(settings)
    prepared = prepare_data(settings)
    _, table = prepare_partition(settings, prepared)
    return choose_method(settings, prepared, table), sizes_of_clients(table.counts())


def sizes_of_clients(counts: np.ndarray) -> str:
    """Return how many training samples clients have, in a sentence."""
    if len(counts) == 1:
        return "there is one client: nothing is federated, and scikit-learn finds the same clusters"
    sizes = f"{counts.min():,} to {counts.max():,} each (median {int(np.median(counts)):,})"
    if counts.min() == counts.max():
        sizes = f"{counts.min():,} each"
    return f"{counts.sum():,} training samples at {len(counts):,} clients, {sizes}"
