"""Optuna as a pure function: proposals and noise, on planted scores whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.sweeps.search.definition import SearchDefinition, make_search
from shoal.sweeps.search.proposals import import_optuna, most_trials, propose, settle
from shoal.sweeps.search.result import SearchResult, caveats, noise_of, result_from_trials

VARY: dict[str, Any] = {
    "local.lr": {"low": 1e-5, "high": 1.0, "log": True},
    "local.batch": {"choices": [16, 32, 64]},
    "local.epochs": {"low": 1, "high": 5},
}


def search(**changes: Any) -> SearchDefinition:
    return make_search({"name": "toy", "vary": VARY, **changes})


def planted(values: dict[str, Any]) -> float:
    """Best at a learning rate of 0.01; the batch size does nothing."""
    return -((math.log10(values["local.lr"]) + 2) ** 2) - 0.05 * values["local.epochs"]


def carried_out(
    definition: SearchDefinition, trials: int, score: Callable[[dict[str, Any]], float] = planted, start: Any = ()
) -> list[Any]:
    """Settled trials, from those that are there."""
    settled = list(start)
    while len(settled) < trials:
        proposal = propose(definition, settled)
        settled.append(settle(proposal, "COMPLETE", [score(proposal.params)], ["run"]))
    return settled


def study_with(trials: list[Any]) -> Any:
    study = import_optuna().create_study(direction="maximize")
    study.add_trials(trials)
    return study


def test_a_trial_follows_from_the_seed_its_number_and_the_trials_before() -> None:
    definition = search(random_trials=4)
    straight = [trial.params for trial in carried_out(definition, 12)]
    assert len({str(values) for values in straight}) == 12
    half = carried_out(definition, 6)
    for _ in range(3):
        propose(definition, half)  # what was proposed and cut short leaves no trace
    assert [trial.params for trial in carried_out(definition, 12, start=half)] == straight
    other = [trial.params for trial in carried_out(search(random_trials=4, seed=1), 12)]
    assert not any(params in straight for params in other)
    worse = carried_out(definition, 12, lambda values: -planted(values))
    assert [trial.params for trial in worse][:4] == straight[:4]
    assert [trial.params for trial in worse][4:] != straight[4:]  # what scored well is what TPE goes by


@pytest.mark.parametrize("seed", range(2))
def test_a_planted_best_is_found(seed: int) -> None:
    definition = search(seed=seed, trials=40)
    trials = carried_out(definition, 40)
    result = result_from_trials(definition, trials, "")
    best = result.best_trial
    assert best is not None
    assert 0.005 < best.values["local.lr"] < 0.02  # type: ignore[operator]


def test_a_grid_has_every_combination_once() -> None:
    vary = {"local.epochs": {"low": 1, "high": 3}, "local.lr": {"low": 0.1, "high": 0.3, "step": 0.1}}
    definition = search(sampler="grid", vary=vary, trials=100)
    assert most_trials(definition) == 9
    found = [trial.params for trial in carried_out(definition, 9, lambda values: 0.0)]
    assert {(params["local.epochs"], round(params["local.lr"], 6)) for params in found} == {
        (epochs, lr) for epochs in (1, 2, 3) for lr in (0.1, 0.2, 0.3)
    }
    assert carried_out(search(sampler="grid", vary=vary, seed=1), 1, lambda _: 0.0)[0].params != found[0]


def noisy(seeds: int, apart: float) -> SearchResult:
    """Two trials whose scores are so far apart, with a spread of 0.1 over seeds."""
    definition = search(seeds=seeds)
    draw = np.random.default_rng(0)
    settled: list[Any] = []
    for level in (0.5, 0.5 + apart, 0.5 - 2, 0.5 - 3):
        scores = [float(level + value) for value in draw.normal(0, 0.1, seeds)]
        settled.append(settle(propose(definition, settled), "COMPLETE", scores, []))
    return result_from_trials(definition, settled, "")


def test_a_difference_that_seeds_explain_is_said_to_be_none() -> None:
    close, clear = noisy(5, 0.05), noisy(5, 1.0)
    assert close.noise is not None
    assert 0.06 < close.noise < 0.26
    assert len(close.level_with_best()) == 1
    assert not clear.level_with_best()
    assert "cannot be told apart; as good as the best" in " ".join(caveats(search(seeds=5), close))
    assert "cannot be told apart; no other trial is so close" in " ".join(caveats(search(seeds=5), clear))
    text = " ".join(caveats(search(), result_from_trials(search(), carried_out(search(), 3), "")))
    assert "it is not known how far scores differ by the seed alone" in text


def test_noise_leaves_out_what_a_seed_does_to_all_trials() -> None:
    draw = np.random.default_rng(1)
    seeds, left = draw.normal(0, 10, 40), draw.normal(0, 0.3, (30, 40))
    noise = noise_of((np.arange(30)[:, None] + seeds + left).tolist())
    assert noise is not None
    assert noise == pytest.approx(2 * 0.3 * math.sqrt(2 / 40), rel=0.06)
    assert noise_of([(0.1,), (0.2,)]) is None
