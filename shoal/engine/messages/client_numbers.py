"""The numbers that come with a client's answer: its own metrics, and the counts of its worker."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shoal.core.errors import shown
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.manifest import COUNTED
from shoal.methods.contract.declared import MAX_INT64, MIN_INT64, fits, short

MAX_METRICS = 100
"""Most metrics that a client may report."""
METRIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,99}")


def metrics_fault(metrics: Mapping[str, float]) -> str | None:
    """Return why a client's metrics do not fit into a table; None if they do.

    NaN and infinite values fit, since honest work may diverge; whole numbers must have at most 64 bits.
    """
    if not isinstance(metrics, Mapping):
        return f"{short(metrics)}, expected numbers by name"
    if len(metrics) > MAX_METRICS:
        return f"{len(metrics)} metrics, expected at most {MAX_METRICS}"
    for name, value in metrics.items():
        if not (isinstance(name, str) and METRIC_NAME.fullmatch(name)):
            return f"{shown(name)} is not the name of a metric: expected up to 100 letters, digits, and _ . / -"
        if name in COUNTED:
            return f"{name!r} is counted by the engine: give the metric another name in the method"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{name!r} is {shown(value)}, expected a number"
        if isinstance(value, int) and not fits(value):
            return f"{name!r} is {short(value)}, expected a whole number from {MIN_INT64} to {MAX_INT64}"
    return None


def counts_fault(done: FinishedWork, samples: int) -> str | None:
    """Return what is wrong with the counts of a client's finished work; None: nothing.

    Args:
        done: the answer of a worker, in which any value may be wrong.
        samples: number of the client's training samples.
    """
    if type(done.client) is not int or not 0 <= done.client <= MAX_INT64:
        return f"client is {short(done.client)}, expected a whole number"
    if type(done.samples) is not int or done.samples != samples:
        return f"samples is {short(done.samples)}, expected {samples}"
    sizes = {name: getattr(done, name) for name in ("bytes_up", "bytes_down", "bytes_d2d")}
    for name, size in (*sizes.items(), *((f"bytes to client {short(peer)}", s) for peer, s in done.peers.items())):
        if type(size) is not int or not 0 <= size <= MAX_INT64:
            return f"{name} is {short(size)}, expected a whole number from 0 to {MAX_INT64}"
    # Compared as it is: a whole number of hundreds of digits cannot become a float.
    seconds = done.seconds
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_INT64:
        return f"seconds is {short(seconds)}, expected a number from 0 to {MAX_INT64}"
    return None
