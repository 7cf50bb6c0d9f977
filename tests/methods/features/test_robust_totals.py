"""Lies that pass every check: a robust rule of `aggregation` keeps the clusters that are there without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from table_federation import Rows

from shoal.methods.contract.base import Client, Method, Update
from shoal.methods.contract.context import AggregationSettings, Context, MethodError, ModelSettings
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.features.robust_totals import totals
from shoal.methods.registry import METHODS

LIAR = 2
SHIFT = 0.4
"""Share of the way to the nearest other centre."""
TIED = 12
"""Landmarks around a place."""
SHARE = 0.65
"""Share of a client's ties that lie; with more the ties would be refused."""
Lie = Callable[[Message, Tensors], Tensors]


def ties_of_two_groups(message: Message, sent: Tensors) -> Tensors:
    """The landmarks around one place are tied to those around the place farthest from it."""
    products = torch.zeros_like(sent["products"])
    for of_set, landmarks in zip(products, message.tensors["space.landmarks"], strict=True):
        away = torch.cdist(landmarks, landmarks)
        here = away[0].argsort()[:TIED]
        there = away[away[0].argmax()].argsort()[:TIED]
        both = torch.cat([here, there])
        of_set[both[:, None], both] = 1
    most = sent["products"].sum((1, 2), keepdim=True)
    return {"products": (1 - SHARE) * sent["products"] + SHARE * products * most / products.sum((1, 2), keepdim=True)}


def drawn_aside(message: Message, sent: Tensors) -> Tensors:
    """The mean of each cluster lies towards the nearest other centre, at a cost to match."""
    centres = message.tensors["centres"]
    away = torch.cdist(centres, centres) + torch.eye(centres.shape[1]) * 1e9
    nearest = away.argmin(2)
    shift = SHIFT * (centres[0, nearest[0]][None] - centres)
    counts = sent["counts"][..., None]
    cost = (counts * shift.square()).sum((1, 2))
    return {"sums": (centres + shift) * counts, "inertia": sent["inertia"] + cost}


BOUNDS = {"ties": 0.99, "means": 0.95}
"""Least ARI; under the mean these ties leave 0.97."""
LIES: dict[str, tuple[str, Lie]] = {"ties": ("tie", ties_of_two_groups), "means": ("move", drawn_aside)}


def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    kept = y < 5
    return x[kept].astype(np.float32), y[kept], np.random.default_rng(4).integers(0, 6, kept.sum())


def method_of(rows: Rows, rule: Any, **settings: Any) -> Method:
    kind = METHODS["fedkmeans"]
    context = Context(
        rows.data.spec, ModelSettings(), seed=0, rounds=80, aggregation=AggregationSettings(rule=rule, hostile=0.2)
    )
    return kind(kind.Settings(**settings), context)


def with_liar(method: Method, step: str, lie: Lie) -> Method:
    honest = method.client_update

    def client_update(message: Message, client: Client) -> Update:
        update = honest(message, client)
        if client.id != LIAR or message.facts["step"] != step:
            return update
        told = {**update.message.tensors, **lie(message, dict(update.message.tensors))}
        return replace(update, message=replace(update.message, tensors=told))

    method.client_update = client_update  # type: ignore[method-assign]
    return method


def clusters(rows: Rows, method: Method) -> np.ndarray:
    server = rows.run(method)
    found = method.assignment(server, rows, rows.evaluation())
    assert found is not None
    return np.asarray(found.cluster[: len(rows.x)])


@pytest.mark.long
@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
@pytest.mark.parametrize("name", LIES)
def test_one_liar_of_six_changes_no_cluster(tmp_path: Path, name: str, rule: str) -> None:
    step, lie = LIES[name]
    landmarks = {"landmarks": 60} if step == "tie" else {}
    honest = clusters(rows := Rows(tmp_path / "honest", *table()), method_of(rows, "mean", **landmarks))
    rows = Rows(tmp_path / "lied", *table())
    told = clusters(rows, with_liar(method_of(rows, rule, **landmarks), step, lie))
    kept = rows.owner != LIAR
    assert adjusted_rand_score(honest[kept], told[kept]) >= BOUNDS[name]


def test_a_rule_takes_the_middle_of_what_clients_say_of_a_mean() -> None:
    answers = [{"counts": torch.tensor([2.0, n]), "sums": torch.tensor([[2.0 * v], [n * 5.0]])} for v, n in
               ((1, 0), (2, 0), (3, 1), (900, 4))]  # fmt: skip
    robust = totals(answers, AggregationSettings(rule="median"))
    assert robust["counts"].tolist() == [8, 5]
    assert robust["sums"].flatten().tolist() == [8 * 2.5, 25]
    assert totals(answers, AggregationSettings())["sums"].flatten().tolist() == [2 * 906, 25]


def test_rules_that_choose_whole_messages_are_refused(tmp_path: Path) -> None:
    rows = Rows(tmp_path, *table())
    with pytest.raises(MethodError, match=r"aggregation\.rule"):
        method_of(rows, "krum")
