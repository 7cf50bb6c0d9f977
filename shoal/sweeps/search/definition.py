"""The definition of a search: the settings that all trials share, those that vary, and the score of a trial."""

from __future__ import annotations

import contextlib
import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from shoal.core.errors import ShoalError
from shoal.data.sets.prepare import kind_of
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import AUTO, Settings, as_text, flatten, load_settings
from shoal.engine.settings.sections import Section
from shoal.engine.settings.wrong_settings import explain, unknown_name
from shoal.engine.settings.yaml_text import read_yaml_file
from shoal.lifecycle.preflight import check_method, known_spec
from shoal.methods.registry import METHODS
from shoal.methods.scores.metrics import DESCRIBED
from shoal.sweeps.sweep import without_registration

NEIGHBOURS = "neighbours"
SILHOUETTE = "silhouette"
CLUSTER_SCORES = {NEIGHBOURS: "neighbour_agreement", SILHOUETTE: "silhouette"}
"""Scores of the clusters of all samples, without labels, and their names among the numbers of a run."""
UNUSABLE_METRICS = ("neighbour_agreement", "loss")
"""Metrics that compare no trials: no round has an agreement, and the scale of a loss changes with the settings."""
SCORES = (
    *CLUSTER_SCORES,
    *(
        name
        for name, metric in DESCRIBED.items()
        if metric.better != "neither" and name not in (*CLUSTER_SCORES, *UNUSABLE_METRICS)
    ),
)
"""The scores that a search can use."""
SAME_FOR_ALL = {
    "seed": "give the search `seeds` instead",
    "data": "scores on different samples cannot be compared",
    "evaluate": "all trials are evaluated in the same way",
    "workers": "all trials share the workers",
    "tracking": "all trials are logged to the same place",
    "checkpoint": "it changes no score",
}
"""Sections of settings that cannot vary, and why."""
Value: TypeAlias = bool | int | float | str | None
"""A value of a setting that varies."""
METHOD = "method.name"
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$"


def number_of(value: object) -> int | float:
    """Return a finite number from a value or its text, whole where it has digits alone."""
    text = str(value)
    try:
        number = int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"given {text!r}; input should be a valid number")
    return number


Number = Annotated[int | float, BeforeValidator(number_of)]


class SearchError(ShoalError):
    """A search is wrong, or cannot be started or resumed."""


class VariedSetting(Section):
    """The values that one setting may have: `choices`, or a range from `low` to `high`."""

    choices: tuple[Value, ...] | None = Field(None, description="the values, at least two; they have no order")
    low: Number | None = Field(
        None, description="smallest value of a range; with whole ends all values are whole numbers"
    )
    high: Number | None = Field(None, description="largest value of the range")
    log: bool = Field(False, description="true: values are spread evenly on a logarithmic scale; low must be above 0")
    step: Number | None = Field(
        None, gt=0, description="distance between values of the range; by default any value, or any whole number"
    )

    @model_validator(mode="after")
    def _check_kind(self) -> VariedSetting:
        if self.choices is not None:
            if self.log or (self.low, self.high, self.step) != (None, None, None):
                raise ValueError("choices exclude low, high, log and step")
            if len({json.dumps(choice) for choice in self.choices}) < max(2, len(self.choices)):
                raise ValueError("expected at least two choices, each of them once")
        elif self.low is None or self.high is None:
            raise ValueError("expected choices, or low and high")
        elif self.low >= self.high or (self.log and (self.low <= 0 or self.step is not None)):
            raise ValueError(
                f"low is {self.low} and high {self.high}: expected low below high, and with log low above 0 and no step"
            )
        elif self.whole and isinstance(self.step, float):
            raise ValueError("low and high are whole numbers: expected a whole step")
        return self

    @property
    def whole(self) -> bool:
        """Whether all values of the range are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def ends(self) -> tuple[Value, ...]:
        """Return the values that are checked before any work: all choices, or both ends of the range."""
        return self.choices or (self.low, self.high)


class SearchDefinition(Section):
    """A search over settings."""

    name: str = Field(pattern=NAME, description="name of the search; its folder is results/searches/NAME")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings of a run that all trials share")
    vary: dict[str, VariedSetting] = Field(
        min_length=1,
        description="settings that vary, by their dotted keys: {choices: [...]}, or {low, high, log, step}",
    )
    score: str = Field(
        NEIGHBOURS,
        description="score of a trial: neighbours (without labels), silhouette (without labels, in each model's own "
        "features), or a metric such as acc or nmi, which needs labels",
    )
    trials: int = Field(30, ge=1, le=10_000, description="number of trials, with those that earlier calls executed")
    seeds: int = Field(
        1, ge=1, description="runs of a trial, each with its own seed, the same in all trials; the score is their mean"
    )
    sampler: Literal["tpe", "random", "grid"] = Field(
        "tpe",
        description="how settings are drawn: tpe: near those that scored well; random; grid: all combinations of "
        "choices and of ranges with a step, in random order",
    )
    random_trials: int = Field(10, ge=1, description="tpe: number of first trials that are drawn at random")
    seed: int = Field(0, ge=0, description="seed of every draw of the search; its runs have seeds of their own")

    @property
    def maximises(self) -> bool:
        """Whether a higher score is better."""
        return self.score == NEIGHBOURS or DESCRIBED[self.score].better == "higher"

    @property
    def direction(self) -> str:
        """The direction in which the score is better, in Optuna's words."""
        return "maximize" if self.maximises else "minimize"

    @property
    def uses_labels(self) -> bool:
        """Whether the score needs labels."""
        return self.score not in CLUSTER_SCORES and DESCRIBED[self.score].labels

    def settings_with(self, values: dict[str, Value], number: int = 0) -> Settings:
        """Return the settings of a run of a trial.

        Args:
            values: of the settings that vary, by dotted key.
            number: of the run in the trial, from 0; each run has the next seed.

        Raises:
            SettingsError: the values contradict each other.
        """
        raw = merge(
            without_registration(self.settings), *(nested_setting(path, value) for path, value in values.items())
        )
        settings = load_settings(changes=raw)
        return load_settings(changes=merge(raw, {"seed": settings.seed + number})) if number else settings

    def identity(self) -> dict[str, Any]:
        """Return what decides the trials, as JSON: neither how many there are nor where they run."""
        decisive = self.model_dump(mode="json", exclude={"name", "trials", "settings"})
        return {**decisive, "maximises": self.maximises, "settings": self.settings_with({}).digest()}


def nested_setting(path: str, value: Value) -> dict[str, Any]:
    """Return a setting, given by its dotted key, as nested dictionaries.

    >>> nested_setting("local.lr", 0.1)
    {'local': {'lr': 0.1}}
    """
    nested: Any = value
    for step in reversed(path.split(".")):
        nested = {step: nested}
    return dict(nested)


def load_search(path: Path) -> SearchDefinition:
    """Read and check the YAML file of a search.

    Raises:
        SearchError: the file cannot be read or is wrong: a line for each wrong key.
    """
    raw = read_yaml_file(path, "search file", SearchError, "base")
    if not isinstance(raw, dict):
        raise SearchError(f"search file {path} holds a {type(raw).__name__}; expected keys and values")
    return make_search(raw)


def make_search(raw: dict[str, Any]) -> SearchDefinition:
    """Check the content of a search file, except its settings.

    Raises:
        SearchError: a line for each wrong key: what was given and what is expected.
    """
    raw = as_text(raw)
    try:
        definition = SearchDefinition.model_validate(raw)
    except ValidationError as error:
        raise SearchError("\n".join(explain(raw, error.errors(), SearchDefinition))) from None
    vary = {path: typed_choices(definition, path, varied) for path, varied in definition.vary.items()}
    return definition.model_copy(update={"vary": vary})


def typed_choices(definition: SearchDefinition, path: str, varied: VariedSetting) -> VariedSetting:
    """Return the values of a setting with choices of its type; a choice that it refuses stays text."""
    typed = []
    for choice in varied.choices or ():
        value: Value = choice
        with contextlib.suppress(ShoalError):
            value = flatten(definition.settings_with({path: choice})).get(path, choice)
        typed.append(value)
    return varied.model_copy(update={"choices": tuple(typed) or None})


def check_search(definition: SearchDefinition) -> None:
    """Refuse a search that cannot be executed, before any work.

    Each value of a setting is tried with the shared settings. Where two varied settings contradict each other, the
    trial that draws both fails.

    Raises:
        SearchError: the score, or a setting that varies, cannot be used. SettingsError, DataError, MethodError: the
            shared settings make no run.
    """
    if definition.score not in SCORES:
        raise SearchError(unknown_name("score", definition.score, SCORES))
    shared = definition.settings_with({})
    if METHOD not in definition.vary and shared.chooses_method:
        raise SearchError(
            "settings.method.name: 'auto' is chosen for a run, and all trials need one method: name it "
            f"(`shoal data show {shared.data.name}` says which one auto chooses), or vary method.name"
        )
    for path, varied in definition.vary.items():
        check_variation(definition, path, varied)
        check_effect(definition, path)
    check_run(definition, shared)
    for path, varied in definition.vary.items():
        for value in varied.ends():
            try:
                check_run(definition, definition.settings_with({path: value}))
            except ShoalError as error:
                raise SearchError(f"vary.{path}: {value} cannot be used: {error}") from None


def check_variation(definition: SearchDefinition, path: str, varied: VariedSetting) -> None:
    """Refuse a setting that cannot vary in this search.

    Raises:
        SearchError: says which setting, and what to do.
    """
    section = path.split(".")[0]
    if section in SAME_FOR_ALL:
        raise SearchError(f"vary.{path}: {section} cannot vary within a search: {SAME_FOR_ALL[section]}")
    if path == METHOD and AUTO in varied.ends():
        raise SearchError("vary.method.name: 'auto' is no single method: give the names of methods")
    if definition.score == NEIGHBOURS and path == "model.clusters":
        raise SearchError(
            "vary.model.clusters: the score 'neighbours' only compares clusterings with the same number of clusters: "
            "set score to silhouette, or let model.clusters: auto choose the number"
        )
    if definition.sampler == "grid" and varied.choices is None and varied.step is None and not varied.whole:
        raise SearchError(f"vary.{path}: a grid needs single values: give choices, or a step")


def check_effect(definition: SearchDefinition, path: str) -> None:
    """Refuse a setting of local training where the method of all trials trains nothing: all trials would be the same.

    Raises:
        SearchError: says which setting, and what to do.
    """
    method = definition.settings_with({}).method.name
    if METHOD in definition.vary or METHODS[method].trains:
        return
    if path.split(".")[0] == "local":
        raise SearchError(
            f"vary.{path}: all trials have the method {method!r}, which trains nothing, so that {path} has no effect: "
            "vary another setting, or set settings.method.name to a method that trains"
        )


def check_run(definition: SearchDefinition, settings: Settings) -> None:
    """Refuse settings that make no run, or a run without the score.

    Raises:
        SearchError: the data or the method do not have what the score needs. MethodError, DataError: no run.
    """
    check_method(settings)
    if settings.chooses_method:
        return
    method = METHODS[settings.method.name]
    if definition.score in CLUSTER_SCORES and not method.finds_clusters:
        raise SearchError(
            f"the score {definition.score!r} needs clusters of samples, and method {settings.method.name!r} finds "
            "none: set score to a metric of the method, such as acc"
        )
    if definition.score == NEIGHBOURS and kind_of(settings.data.name) == "text":
        raise SearchError("the score 'neighbours' only compares images and vectors: set another score for text")
    if definition.uses_labels:
        spec = known_spec(settings)
        if spec.classes is None:
            raise SearchError(
                f"the score {definition.score!r} needs labels, and data set {settings.data.name!r} has none: set score "
                "to neighbours"
            )
