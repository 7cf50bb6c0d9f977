"""The numbers that come with a client's answer: its own metrics, and the counts of its worker."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shoal.core.errors import shown
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.manifest import COUNTED
from shoal.methods.contract.declared import MAX_INT64, FactForm, MessageForm, exactly, fault, short
from shoal.methods.contract.message import Message

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
    for name in metrics:
        if not (isinstance(name, str) and METRIC_NAME.fullmatch(name)):
            return f"{shown(name)} is not the name of a metric: expected up to 100 letters, digits, and _ . / -"
        if name in COUNTED:
            return f"{name!r} is counted by the engine: give the metric another name in the method"
    return fault(Message(facts=dict(metrics)), MessageForm(facts=dict.fromkeys(metrics, FactForm(finite=False))))


def counts_fault(done: FinishedWork, samples: int) -> str | None:
    """Return what is wrong with the counts of a client's finished work; None: nothing.

    Args:
        done: the answer of a worker, in which any value may be wrong.
        samples: number of the client's training samples.
    """
    counts = {name: getattr(done, name) for name in ("client", "bytes_up", "bytes_down", "bytes_d2d")}
    counts |= {f"bytes to client {short(peer)}": size for peer, size in done.peers.items()}
    forms = dict.fromkeys(counts, FactForm(0, MAX_INT64, whole=True))
    forms |= {"samples": exactly(samples), "seconds": FactForm(0, MAX_INT64)}
    facts = {**counts, "samples": done.samples, "seconds": done.seconds}
    return fault(Message(facts=facts), MessageForm(facts=forms))
