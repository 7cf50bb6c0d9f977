"""A held-out part that is stable for growing data: the side of a sample follows from the sample alone.

A draw over all samples of a client would hold out others as soon as one more is added. Here each sample is hashed with
the seed, the purpose and the client's name, so that it always lies on the same side, whatever the other samples and
their order are. Copies of a sample of one client lie on one side too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

PURPOSE = "held-out part"
MIN_TRAIN = 2
"""Smallest number of training samples of each client: with fewer it could not train."""


def held_out(
    x: np.ndarray, client: Sequence[str], share: float, seed: int, kept: dict[str, int] | None = None
) -> np.ndarray:
    """Return which samples are held out, bool (n,): about `share` of them.

    Args:
        x: samples (n, ...).
        client: the name of each sample's client.
        share: of the samples that are held out, in [0, 1).
        seed: of the nightly runs.
        kept: number of training samples that clients have already, by name. A client that would have fewer than
            `MIN_TRAIN` in all keeps those of its new samples with the highest hashes.

    >>> x = np.arange(1000, dtype=np.int64)[:, None]
    >>> part = held_out(x, ["a"] * 1000, 0.2, 0)
    >>> int(part.sum()), bool((part[500:] == held_out(x[500:], ["a"] * 500, 0.2, 0)).all())
    (206, True)
    """
    place = np.array([_place(sample, name, seed) for sample, name in zip(x, client, strict=True)])
    part = place < share
    names = np.array(client, dtype=object)
    for name in dict.fromkeys(client):
        rows = np.flatnonzero(names == name)
        lacking = MIN_TRAIN - (kept or {}).get(name, 0) - int((~part[rows]).sum())
        if lacking > 0:
            test_rows = rows[part[rows]]
            part[test_rows[np.argsort(place[test_rows], kind="stable")[::-1][:lacking]]] = False
    return part


def _place(sample: np.ndarray, client: str, seed: int) -> float:
    """Return a number in [0, 1) that follows from the sample's bytes, its client, the seed and the purpose."""
    digest = hashlib.blake2b(f"{seed}|{PURPOSE}|{client}|".encode(), digest_size=8)
    digest.update(np.ascontiguousarray(sample).tobytes())
    return int.from_bytes(digest.digest(), "little") / 2**64
