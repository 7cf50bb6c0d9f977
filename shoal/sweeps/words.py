"""What the page, MLflow's note and the command line say of a search's result in words."""

from __future__ import annotations

import json
import math
import shlex
from typing import Any

from shoal.engine.settings.merge import merge
from shoal.engine.settings.yaml_text import read_yaml
from shoal.sweeps.definition import SILHOUETTE, SearchDefinition, SearchError, Value, Varied, laid
from shoal.sweeps.importance import FEW
from shoal.sweeps.result import SearchResult

EDGE = 0.02
"""A value in so small a part of a range's end lies at the end."""


def shown(value: Value) -> str:
    """A setting's value for people, with four digits.

    >>> shown(0.000123456), shown(None), shown(True), shown(64)
    ('0.0001235', 'none', 'true', '64')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def caveats(definition: SearchDefinition, result: SearchResult) -> list[str]:
    """What a reader must know before trusting the result, a sentence or two each."""
    finished, best = result.finished, result.best_trial
    said = []
    if result.uses_labels:
        said.append(f"The score {result.score} uses labels: without them this search could not have been made.")
    if result.score == SILHOUETTE:
        said.append(
            "Silhouette is of each model's own features, which the settings change: a network that maps all samples to "
            "a few points has a high one. Look at the clusters of the best run before its settings are used."
        )
    needed = FEW * len(definition.vary)
    if len(finished) < needed:
        said.append(
            f"These are few trials: {len(finished)} have a score, and with fewer than {needed} ({FEW} for each setting "
            "that varies) importances and slices are rough."
        )
    if result.noise is None:
        said.append(
            "Each trial is one run, so that how far scores differ by the seed alone is not known: a search with "
            "seeds: 3 would say so. A small difference between two trials says nothing."
        )
    else:
        close = result.level_with_best()
        numbers = ", ".join(str(trial.number) for trial in close[:10]) + (", ..." if len(close) > 10 else "")
        told = f"trials that are as good as the best by that measure: {numbers}" if close else "no other is so close"
        noise = result.noise
        said.append(
            f"From seed to seed scores differ by {noise.deviation:.2g} (standard deviation, {noise.seeds} seeds of "
            f"{noise.trials} trials): two trials closer than {noise.difference:.2g} cannot be told apart; {told}."
        )
    if len(finished) > 1:
        said.append(
            f"The best of {len(finished)} scores is partly luck: expect the same settings to score a little worse "
            "with new seeds."
        )
    if best is not None:
        said += [
            f"The best value of {path}, {shown(best.values[path])}, lies at the end of its range: a wider range may "
            "hold a better one."
            for path, varied in definition.vary.items()
            if at_the_end(varied, best.values[path])
        ]
    return said


def at_the_end(varied: Varied, value: Value) -> bool:
    """Whether a value lies at one end of a range.

    >>> at_the_end(Varied(low=1, high=100, log=True), 99), at_the_end(Varied(low=0.0, high=1.0), 0.5)
    (True, False)
    """
    if varied.choices is not None or varied.low is None or varied.high is None or not isinstance(value, int | float):
        return False
    low, high, at = (math.log(end) if varied.log else float(end) for end in (varied.low, varied.high, value))
    share = (at - low) / (high - low)
    return not EDGE < share < 1 - EDGE


def flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested settings as dotted keys."""
    found = []
    for key, value in settings.items():
        whole = isinstance(value, dict) and value and key != "options"
        found += flat(value, f"{prefix}{key}.") if whole else [(f"{prefix}{key}", value)]
    return found


def command(settings: dict[str, Any]) -> str:
    """The command that makes a run of these nested settings.

    >>> command({"method": "fedpnp", "local": {"lr": 0.01}})
    'shoal run --set method=fedpnp --set local.lr=0.01'
    """
    words = ["shoal", "run"]
    for key, value in flat(settings):
        words += ["--set", shlex.quote(f"{key}={as_yaml(value)}")]
    return " ".join(words)


def as_yaml(value: Any) -> str:
    """A plain value in one line, as `--set` reads it back.

    >>> as_yaml(None), as_yaml("on"), as_yaml(1e-05), as_yaml([1, 2])
    ('null', '"on"', '1.0e-05', '[1, 2]')
    """
    if isinstance(value, str):
        try:
            bare = read_yaml(value, "a value", SearchError) == value
        except SearchError:
            bare = False
        return value if bare else json.dumps(value)
    if isinstance(value, float) and math.isfinite(value):
        text = repr(value)
        # Without a point YAML takes 1e-05 for a word.
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    return json.dumps(value)


def best_settings(definition: SearchDefinition, result: SearchResult) -> dict[str, Any]:
    """The settings of the best trial's first run, as a settings file has them.

    Raises:
        SearchError: no trial has a score.
    """
    best = result.best_trial
    if best is None:
        raise SearchError(f"search {result.search!r}: no trial has a score")
    return merge(definition.settings, *(laid(path, value) for path, value in best.values.items()))
