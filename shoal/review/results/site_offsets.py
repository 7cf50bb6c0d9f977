"""New samples site by site, where sites differ by offsets that a model takes away."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

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
