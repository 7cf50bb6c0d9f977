"""The names of runs in MLflow: method and data, the settings that a person chose, then the rest of the title."""

from __future__ import annotations

import hashlib
from typing import Any

from shoal.engine.settings.defaults import changed_settings
from shoal.engine.settings.run_settings import Settings
from shoal.methods.registry import METHODS

SEPARATOR = " · "
MAX_NAME_CHARACTERS = 250
"""Characters of a run's name that MLflow's tables hold."""
MAX_VALUE_CHARACTERS = 24
"""Characters of a setting's value in a name."""
IN_TITLE = ("partition.clients", "seed")
"""Settings that are in every name, beside method, data and partition scheme."""
PARAMETER_OF = {"dirichlet": "beta", "labels_per_client": "labels", "majority": "p", "by_column": "column"}
"""The parameter of a partition scheme that is in every name."""
NOT_COMPUTED = ("tracking.", "checkpoint.", "workers.", "choose.")
"""Sections that say where a run is done and shown, or how a setting was chosen: not what is computed."""
OF_TRAINING = ("local.", "augment.")
"""Sections that a method does not read whose clients take no gradient steps."""


def run_name(settings: Settings) -> str:
    """Return the name of a run.

    >>> from shoal.engine.settings.run_settings import make_settings
    >>> run_name(make_settings({"method": "fedcc", "local": {"lr": 0.001}, "rounds": 5}))
    'fedcc digits · lr 0.001 · rounds 5 · iid x5 seed 0'
    """
    chosen = chosen_settings(settings)
    if not chosen:
        return title(settings)
    words = [key.rpartition(".")[2] for key in chosen]
    labels = [key if words.count(word) > 1 else word for key, word in zip(chosen, words, strict=True)]
    middle = SEPARATOR.join(f"{label} {value}" for label, value in zip(labels, chosen.values(), strict=True))
    front = f"{settings.method.name} {settings.data.name}"
    back = f"{partition_title(settings)} seed {settings.seed}"
    room = max(0, MAX_NAME_CHARACTERS - len(front) - len(back) - 2 * len(SEPARATOR))
    return shorten(SEPARATOR.join((front, shorten(middle, room), back)))


def title(settings: Settings) -> str:
    """Return the title of a run: method, data, partition, seed.

    >>> from shoal.engine.settings.run_settings import make_settings
    >>> title(make_settings({"method": "fedcc", "partition": {"kind": "dirichlet", "beta": 0.3}}))
    'fedcc digits dirichlet(0.3) x5 seed 0'
    """
    return shorten(f"{settings.method.name} {settings.data.name} {partition_title(settings)} seed {settings.seed}")


def partition_title(settings: Settings) -> str:
    """Return the scheme of a partition, with its parameter and the number of clients."""
    partition = settings.partition
    words = str(partition.kind)
    if partition.kind in PARAMETER_OF:
        words += f"({getattr(partition, PARAMETER_OF[partition.kind])})"
    if partition.clients:
        words += f" x{partition.clients}"
    return words


def chosen_settings(settings: Settings) -> dict[str, str]:
    """Return the settings that differ from their defaults and that the title does not say, in words for a name.

    Settings that the method does not read are left out.
    """
    parameter = f"partition.{PARAMETER_OF.get(settings.partition.kind, '')}"
    trains = METHODS[settings.method.name].trains
    chosen = {}
    for key, value in sorted(changed_settings(settings).items()):
        if key in IN_TITLE or key == parameter or key.startswith(NOT_COMPUTED):
            continue
        if trains or not key.startswith(OF_TRAINING):
            chosen[key] = value_in_name(value)
    return chosen


def value_in_name(value: Any) -> str:
    """Return a setting's value for a name: of a long value its digest."""
    text = str(value)
    if text in ("None", "True", "False"):
        return text.lower()
    if len(text) > MAX_VALUE_CHARACTERS:
        return f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return text


def shorten(text: str, characters: int = MAX_NAME_CHARACTERS) -> str:
    """Return a text cut to a number of characters: databases refuse longer names, and the whole run with them."""
    if len(text) > characters:
        return f"{text[: characters - 1]}…"
    return text
