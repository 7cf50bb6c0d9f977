"""Answers of a client that is broken or hostile: every way in which a message can be other than it should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from shoal.methods.contract.base import Message, Update

Spoil = Callable[[Update], Update]
"""An update made wrong; the same object where there is nothing of its kind to make wrong."""
TOO_MANY_VALUES = 1_200_000_000
"""Float32 values of a memory that is too large; as an expanded tensor they take no space."""
TIED = 6
"""Landmarks around a place."""
SHIFT = 0.4
"""Share of the way to the nearest other mean."""
NUMBERS = ("n", "counts", "count", "points", "changed", "choice", "gamma", "loss", "held_count")
"""Facts of the methods that are numbers."""


def _tensors(change: Callable[[Tensor], Tensor], *, floating: bool = True) -> Spoil:
    """Change every tensor of the message to the server, or every floating-point one."""

    def spoil(update: Update) -> Update:
        if not any(t.is_floating_point() or not floating for t in update.message.tensors.values()):
            return update
        changed = {
            name: change(t) if t.is_floating_point() or not floating else t
            for name, t in update.message.tensors.items()
        }
        return replace(update, message=replace(update.message, tensors=changed))

    return spoil


def _times(factor: float) -> Spoil:
    """Scale every floating-point tensor of the message to the server, where one is not zero."""
    scale = _tensors(lambda t: t * factor)

    def spoil(update: Update) -> Update:
        tensors = update.message.tensors.values()
        return scale(update) if any(t.is_floating_point() and bool(t.any()) for t in tensors) else update

    return spoil


def _one(tensor: Tensor, value: float) -> Tensor:
    """A tensor with one wrong number in it."""
    spoilt = tensor.clone()
    if spoilt.numel():
        spoilt.view(-1)[0] = value
    return spoilt


def _named(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Spoil:
    """Change which tensors there are."""

    def spoil(update: Update) -> Update:
        if not update.message.tensors:
            return update
        return replace(update, message=replace(update.message, tensors=change(dict(update.message.tensors))))

    return spoil


def _facts(value: Any) -> Spoil:
    """Give every number among the facts another value; of a list of numbers the first."""

    def spoil(update: Update) -> Update:
        facts = dict(update.message.facts)
        changed = False
        for name in (name for name in NUMBERS if name in facts):
            fact = facts[name]
            first = fact[0] if isinstance(fact, list) and fact else fact
            # A count that is 0 already is not made wrong by 0; `True` for 1 is.
            changed |= type(first) is not type(value) or first != value
            facts[name] = [value, *fact[1:]] if isinstance(fact, list) else value
        return replace(update, message=replace(update.message, facts=facts)) if changed else update

    return spoil


def _more_facts(**more: Any) -> Spoil:
    return lambda update: replace(update, message=replace(update.message, facts={**update.message.facts, **more}))


def _memory(change: Callable[[Tensor], Tensor]) -> Spoil:
    """Change every floating-point tensor of the private memory."""

    def spoil(update: Update) -> Update:
        if not any(t.is_floating_point() for t in (update.memory or {}).values()):
            return update
        changed = {name: change(t) if t.is_floating_point() else t for name, t in (update.memory or {}).items()}
        return replace(update, memory=changed)

    return spoil


def _peers(change: Callable[[Message], Message]) -> Spoil:
    def spoil(update: Update) -> Update:
        changed = {peer: change(message) for peer, message in update.peers.items()}
        return replace(update, peers=changed) if changed else update

    return spoil


def _first_renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    first = next(iter(tensors))
    return {("other" if name == first else name): t for name, t in tensors.items()}


def _without_first(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(list(tensors.items())[1:])


def _fewer_centres(update: Update) -> Update:
    """One centre, where points are said to be in several local clusters."""
    local = (update.memory or {}).get("local")
    if local is None or "centres" not in update.message.tensors or not int(local.max()):
        return update
    centres = update.message.tensors["centres"][:1]
    return replace(update, message=replace(update.message, tensors={**update.message.tensors, "centres": centres}))


def _scores(change: Callable[[Tensor], Tensor]) -> Spoil:
    """Change what a client says that each start of K-means costs with it."""

    def spoil(update: Update) -> Update:
        scores = {name: t for name, t in update.message.tensors.items() if name in ("value", "inertia")}
        if not scores:
            return update
        changed = {name: change(t) for name, t in scores.items()}
        return replace(update, message=replace(update.message, tensors={**update.message.tensors, **changed}))

    return spoil


def _every_cluster(factor: float) -> Spoil:
    """Say that every cluster has as many samples as all have together, whose sums are `factor` times these."""

    def spoil(update: Update) -> Update:
        name = next((name for name in ("counts", "weights") if name in update.message.tensors), None)
        if name is None or "sums" not in update.message.tensors:
            return update
        counts = update.message.tensors[name]
        every = counts.sum(-1, keepdim=True).expand(counts.shape).clone()
        sums = update.message.tensors["sums"]
        means = sums / counts.clamp_min(1)[..., None]
        changed = {name: every, "sums": factor * every[..., None] * means}
        return replace(update, message=replace(update.message, tensors={**update.message.tensors, **changed}))

    return spoil


def _sums(change: Callable[[Tensor], Tensor]) -> Spoil:
    """Change the sums of clusters, not their counts."""

    def spoil(update: Update) -> Update:
        sums = update.message.tensors.get("sums")
        if sums is None or not sums.any():
            return update
        tensors = {**update.message.tensors, "sums": change(sums)}
        return replace(update, message=replace(update.message, tensors=tensors))

    return spoil


def _ties(update: Update) -> Update:
    """Tie the landmarks around one place to those around another, and no others."""
    products = update.message.tensors.get("products")
    if products is None or "weights" in update.message.tensors or "counts" in update.message.tensors:
        return update
    told = torch.zeros_like(products)
    for tied, of_set in zip(told, products, strict=True):
        most = int(of_set.sum(1).argmax())
        here = of_set[most].argsort(descending=True)[:TIED]
        far = of_set.sum(1).masked_fill(of_set[most] > 0, -1).argmax()
        both = torch.cat([here, of_set[far].argsort(descending=True)[:TIED]])
        tied[both[:, None], both] = 1
    told *= products.sum((1, 2), keepdim=True) / told.sum((1, 2), keepdim=True)
    return replace(update, message=replace(update.message, tensors={"products": told}))


def _aside(update: Update) -> Update:
    """Say that the mean of each cluster lies towards the nearest other one, at a cost to match."""
    tensors = update.message.tensors
    if not {"sums", "counts", "inertia"} <= tensors.keys() or not bool((tensors["counts"] > 0).all()):
        return update
    counts = tensors["counts"][..., None]
    means = tensors["sums"] / counts
    away = torch.cdist(means, means) + 1e9 * torch.eye(means.shape[1])
    others = torch.stack([of_start[near] for of_start, near in zip(means, away.argmin(2), strict=True)])
    shift = SHIFT * (others - means)
    told = {"sums": (means + shift) * counts, "inertia": tensors["inertia"] + (counts * shift.square()).sum((1, 2))}
    return replace(update, message=replace(update.message, tensors={**tensors, **told}))


def _far_sums(update: Update) -> Update:
    """Say that the samples of every cluster lie at 50 in each column."""
    counts = update.message.tensors.get("counts")
    if counts is None or "sums" not in update.message.tensors:
        return update
    sums = 50 * counts[..., None].expand_as(update.message.tensors["sums"]).clone()
    return replace(update, message=replace(update.message, tensors={**update.message.tensors, "sums": sums}))


SPOILT: dict[str, Spoil] = {
    "NaN": _tensors(lambda t: torch.full_like(t, float("nan"))),
    "one NaN": _tensors(lambda t: _one(t, float("nan"))),
    "infinite": _tensors(lambda t: _one(t, float("inf"))),
    "minus infinite": _tensors(lambda t: _one(t, float("-inf"))),
    "1e30": _tensors(lambda t: torch.full_like(t, 1e30)),
    "one 1e30": _tensors(lambda t: _one(t, 1e30)),
    "times 1,000": _times(1000),
    "times -1,000,000": _times(-1e6),
    "bool": _tensors(lambda t: t > 0, floating=False),
    "int8": _tensors(lambda t: t.to(torch.int8), floating=False),
    "float16": _tensors(lambda t: t.half()),
    "float32 or float64, the other": _tensors(lambda t: t.float() if t.dtype == torch.float64 else t.double()),
    "complex": _tensors(lambda t: t.to(torch.complex64)),
    "sparse": _tensors(lambda t: t.to_sparse()),
    "one tensor missing": _named(_without_first),
    "no tensor": _named(lambda tensors: {}),
    "a tensor too many": lambda u: replace(
        u, message=replace(u.message, tensors={**u.message.tensors, "extra": torch.ones(3)})
    ),
    "a large tensor too many": lambda u: replace(
        u, message=replace(u.message, tensors={**u.message.tensors, "extra": torch.ones(1_000_000)})
    ),
    "a tensor renamed": _named(_first_renamed),
    "one dimension more": _tensors(lambda t: t[None], floating=False),
    "one row too many": _tensors(lambda t: torch.cat((t.reshape(-1), t.reshape(-1)[:1])), floating=False),
    "one row too few": _tensors(lambda t: t.reshape(-1)[:-1], floating=False),
    "zero rows": _tensors(lambda t: t.reshape(-1)[:0], floating=False),
    "empty message": lambda u: u if u.message == Message() else replace(u, message=Message()),
    "samples to the server": lambda u: replace(u, message=replace(u.message, samples={"raw": torch.arange(5)})),
    "count 1e12": _facts(10**12),
    "count -5": _facts(-5),
    "count 0": _facts(0),
    "count true": _facts(True),
    "count 2.5": _facts(2.5),
    "count as text": _facts("12"),
    "count NaN": _facts(float("nan")),
    "count infinite": _facts(float("inf")),
    "count none": _facts(None),
    "count as list": _facts([[3]]),
    "count of 5,000 digits": _facts(10**5000),
    "count of 65 bits": _facts(2**63),
    "no fact": lambda u: replace(u, message=replace(u.message, facts={})) if u.message.facts else u,
    "a fact too many": _more_facts(extra=1),
    "a million facts": _more_facts(extra=[0.5] * 1_000_000),
    "memory NaN": _memory(lambda t: torch.full_like(t, float("nan"))),
    "memory 1e30": _memory(lambda t: torch.full_like(t, 1e30)),
    "memory complex": _memory(lambda t: t.to(torch.complex64)),
    "memory too large": lambda u: replace(
        u, memory={**(u.memory or {}), "more": torch.zeros(1).expand(TOO_MANY_VALUES)}
    ),
    "memory of too many tensors": lambda u: replace(
        u, memory={**(u.memory or {}), **{f"more/{k}": torch.zeros(1) for k in range(20_000)}}
    ),
    "memory of a long name": lambda u: replace(u, memory={**(u.memory or {}), "m" * 100_000: torch.zeros(1)}),
    "the start that costs nothing": _scores(lambda value: torch.full_like(value, -1e9)),
    "the start that costs all": _scores(lambda value: torch.full_like(value, 1e9)),
    "all samples in every cluster": _every_cluster(-1.0),
    "sums of 50 a row": _far_sums,
    "ties of two groups": _ties,
    "means drawn aside": _aside,
    "sums times -1": _sums(lambda sums: -sums),
    "sums times 3": _sums(lambda sums: 3 * sums),
    "sums of the next cluster": _sums(lambda sums: sums.roll(1, -2)),
    "centres fewer than its points have": _fewer_centres,
    "a metric as text": lambda u: replace(u, metrics={**u.metrics, "loss": "low"}),
    "a metric none": lambda u: replace(u, metrics={**u.metrics, "loss": None}),
    "a metric without a name": lambda u: replace(u, metrics={**u.metrics, "": 1.0}),
    "a metric of 401 digits": lambda u: replace(u, metrics={**u.metrics, "loss": 10**400}),
    "a metric of 65 bits": lambda u: replace(u, metrics={**u.metrics, "loss": -(2**63) - 1}),
    "a metric true": lambda u: replace(u, metrics={**u.metrics, "loss": True}),
    "a metric as list": lambda u: replace(u, metrics={**u.metrics, "loss": [1.0]}),
    "a thousand metrics": lambda u: replace(u, metrics={f"m{k}": 1.0 for k in range(1000)}),
    "to a client that is not there": lambda u: replace(u, peers={999: Message({"model": torch.ones(3)})}),
    "to itself": lambda u: replace(u, peers={u.client: Message({"model": torch.ones(3)})}),
    "to peers NaN": _peers(
        lambda m: Message({**m.tensors, "model": torch.full((3,), float("nan"))}, m.facts, m.samples)
    ),
    "to peers samples that are not there": _peers(
        lambda m: replace(m, samples={name: index + 10**9 for name, index in m.samples.items()})
    ),
    "to peers negative samples": _peers(
        lambda m: replace(m, samples={name: index - 10**9 for name, index in m.samples.items()})
    ),
    "to peers samples of others": _peers(
        lambda m: replace(m, samples={name: torch.arange(len(index)) for name, index in m.samples.items()})
    ),
    "to peers a million samples": _peers(
        lambda m: replace(m, samples={name: index.repeat(100_000) for name, index in m.samples.items()})
    ),
}
"""What a hostile client makes of its honest answer, by name."""
BY_FILE = (
    "NaN",
    "1e30",
    "times 1,000",
    "int8",
    "complex",
    "one tensor missing",
    "one dimension more",
    "empty message",
    "count 1e12",
    "count -5",
    "count true",
    "a million facts",
)
"""What is also written over the file of a message, behind the back of the worker."""
