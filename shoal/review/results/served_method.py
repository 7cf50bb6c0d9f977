"""The method of a run as it serves new samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from shoal.data.sets.prepared import DataSpec
from shoal.engine.settings.run_settings import Settings
from shoal.methods.contract.base import Method
from shoal.methods.contract.context import Context
from shoal.methods.registry import METHODS


def served_method(settings: Settings, spec: DataSpec, encoder_sha256: str) -> Method:
    """Return a run's method on the CPU in full precision: new samples are few, and all machines give the same clusters.

    Args:
        settings: of the run.
        spec: of the data that it was trained on.
        encoder_sha256: digest of the weights of its pretrained encoder; empty where it has none.
    """
    context = Context(
        spec,
        settings.model,
        settings.local,
        settings.augment,
        settings.seed,
        encoder_sha256=encoder_sha256,
        clip=settings.privacy.clip,
    )
    return METHODS[settings.method.name](settings.method, context)


CLIENT = "client"
"""Column that names the client of each row."""
SITE_SAMPLES = 50
"""New samples of a site that tell its offset."""


def tell_offset(site: str, samples: int) -> bool:
    """Return whether so many samples tell the offset of a site; one without a name may be several."""
    return bool(site) and samples >= SITE_SAMPLES


def site_by_site(clients: np.ndarray, assign: Callable[[str, np.ndarray], pd.DataFrame]) -> pd.DataFrame:
    """Return what `assign` returns of each client's samples, in the order of all samples.

    Args:
        clients: the name of each sample's client, str (n,); empty where nobody knows it.
        assign: a client's name and its rows (k,) to a table of k rows.
    """
    parts = []
    for client in np.unique(clients):
        rows = np.flatnonzero(clients == client)
        parts.append(assign(str(client), rows).set_index(rows))
    return pd.concat(parts).sort_index()
