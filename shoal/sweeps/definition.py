"""What a search is asked for: the settings of a run, those that vary, and the score by which trials are judged."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import Field, ValidationError, model_validator

from shoal.core.errors import ShoalError
from shoal.data.prepare import kind_of
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import Settings, load_settings, setting_type, typed_settings
from shoal.engine.settings.sections import Section
from shoal.engine.settings.typed_yaml import by_type, type_of_key
from shoal.engine.settings.wrong_settings import explain, unknown_name
from shoal.engine.settings.yaml_text import read_yaml_file
from shoal.lifecycle.preflight import check_method, check_validation, known_spec
from shoal.methods.registry import METHODS
from shoal.methods.scores.metrics import DESCRIBED

NEIGHBOURS, SILHOUETTE = "neighbours", "silhouette"
OF_CLUSTERS = (NEIGHBOURS, SILHOUETTE)
"""The scores that are computed from the clusters of all samples, and need no label."""
NO_SCORES = ("stability", "loss", "probe_gradient")
"""Metrics that judge nothing here: no round has a stability, and each setting has a loss of its own scale."""
SCORES = (
    *OF_CLUSTERS,
    *(
        name
        for name, metric in DESCRIBED.items()
        if metric.better != "neither" and name not in (*OF_CLUSTERS, *NO_SCORES)
    ),
)
"""What a search can be judged by."""
SAME_FOR_ALL = {
    "seed": "give the search `seeds` instead",
    "data": "scores of other samples cannot be compared",
    "evaluate": "all trials are judged alike",
    "workers": "all trials share them",
    "tracking": "all trials are tracked alike",
    "checkpoint": "it changes no score",
}
"""Sections of settings that may not vary, and why."""
Value: TypeAlias = bool | int | float | str | None
"""What a setting that varies can be."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$"


class SearchError(ShoalError):
    """A search cannot be made, begun or gone on with."""


class Varied(Section):
    """The values that one setting may have: `choices`, or a range from `low` to `high`."""

    choices: tuple[Value, ...] | None = Field(None, description="the values, at least two; without an order")
    low: int | float | None = Field(None, description="smallest value of a range; whole numbers make whole numbers")
    high: int | float | None = Field(None, description="largest value of the range")
    log: bool = Field(False, description="whether the logarithm is what is spread evenly; low is above 0 then")
    step: int | float | None = Field(None, gt=0, description="distance of the range's values; none: any value")

    @model_validator(mode="after")
    def _one_kind(self) -> Varied:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log or self.step is not None:
                raise ValueError("choices stand alone: leave low, high, log and step out")
            if len({json.dumps(choice) for choice in self.choices}) != len(self.choices) or len(self.choices) < 2:
                raise ValueError("choices are at least two values, each of them once")
            return self
        if self.low is None or self.high is None:
            raise ValueError("expected choices, or low and high")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low is {self.low} and high {self.high}: expected low below high")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("with log, low is above 0 and there is no step")
        if self.whole and self.step is not None and not isinstance(self.step, int):
            raise ValueError("low and high are whole numbers, and step is none")
        return self

    @property
    def whole(self) -> bool:
        """Whether the range is one of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def ends(self) -> tuple[Value, ...]:
        """The values that are checked before any work: all choices, or both ends of the range."""
        return self.choices if self.choices is not None else (self.low, self.high)


class SearchDefinition(Section):
    """A search over settings."""

    name: str = Field(pattern=NAME, description="what it is called; its folder is results/searches/NAME")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings of a run that all trials share")
    vary: dict[str, Varied] = Field(
        min_length=1,
        description="settings that vary, by their dotted keys: {choices: [...]}, or {low, high, log, step}",
    )
    score: str = Field(
        NEIGHBOURS,
        description="what a trial is judged by: neighbours (no label needed), silhouette (no label needed, but of each "
        "model's own features), or a metric such as acc or nmi, which use labels",
    )
    direction: Literal["auto", "maximize", "minimize"] = Field(
        "auto", description="whether a higher or a lower score is better; auto: as the score itself says"
    )
    trials: int = Field(30, ge=1, le=10_000, description="how many settings are tried, those tried before counted")
    seeds: int = Field(
        1, ge=1, description="runs of a trial, with as many seeds, the same for all trials; its score is their mean"
    )
    sampler: Literal["tpe", "random", "grid"] = Field(
        "tpe",
        description="what draws settings: tpe: near those that scored well; random; grid: all combinations of choices "
        "and of ranges with a step, in random order",
    )
    random_trials: int = Field(10, ge=1, description="tpe: how many first trials are drawn at random")
    pruner: Literal["median", "halving", "none"] = Field(
        "median",
        description="what stops a bad run early: median: worse than the median of earlier trials after as many rounds; "
        "halving: not among the best third after n, 3 n, 9 n, ... rounds, n the first round after spare_rounds; none",
    )
    spare_trials: int = Field(5, ge=1, description="median: how many trials are finished before one is stopped")
    spare_rounds: int = Field(1, ge=0, description="number of first rounds in which no run is stopped")
    seed: int = Field(0, ge=0, description="seed from which every draw of the search follows; runs have their own")

    @property
    def maximises(self) -> bool:
        """Whether a higher score is better."""
        if self.direction == "auto":
            return self.score == NEIGHBOURS or DESCRIBED[self.score].better == "higher"
        return self.direction == "maximize"

    @property
    def uses_labels(self) -> bool:
        """Whether the score looks at labels."""
        return self.score not in OF_CLUSTERS and DESCRIBED[self.score].labels

    def settings_with(self, values: dict[str, Value], number: int = 0) -> Settings:
        """The settings of a run of a trial.

        Args:
            values: of the settings that vary, by dotted key.
            number: of the run among those of the trial; each has the next seed.

        Raises:
            SettingsError: they do not go together.
        """
        # A search compares: its models are logged, but none of them is a new version of anything.
        raw = merge({"tracking": {"register_as": "none"}}, self.settings, *(laid(k, v) for k, v in values.items()))
        settings = load_settings(changes=raw)
        return load_settings(changes=merge(raw, {"seed": settings.seed + number})) if number else settings

    def identity(self) -> dict[str, Any]:
        """What decides the trials of the search, as JSON: not how many there are, nor where they run."""
        plain = self.model_dump(mode="json", exclude={"name", "trials", "settings", "direction"})
        return {**plain, "maximises": self.maximises, "settings": self.settings_with({}).digest()}


def laid(path: str, value: Value) -> dict[str, Any]:
    """A setting's dotted key and its value as nested dictionaries.

    >>> laid("local.lr", 0.1)
    {'local': {'lr': 0.1}}
    """
    found: Any = value
    for step in reversed(path.split(".")):
        found = {step: found}
    return dict(found)


def load_search(path: Path) -> SearchDefinition:
    """The search that a YAML file defines.

    Raises:
        SearchError: it cannot be read or is wrong: a line for each wrong key. SettingsError, DataError, MethodError:
            its runs could not be made.
    """
    raw = read_yaml_file(path, "search file", SearchError, keep_text=True)
    if not isinstance(raw, dict):
        raise SearchError(f"search file {path} holds a {type(raw).__name__}, expected keys and values")
    definition = make_search(typed_search(raw))
    check_search(definition)
    return definition


def typed_search(raw: dict[str, Any]) -> dict[str, Any]:
    """Return what a search file holds with its values as the types of settings and keys ask for.

    Raises:
        ShoalError: a value with more than one meaning.
    """
    settings = raw.get("settings")
    settings = typed_settings(settings) if isinstance(settings, dict) else settings
    found = {}
    for key, given in raw.items():
        if key == "vary" and isinstance(given, dict):
            found[key] = {path: _typed_range(path, each, settings or {}) for path, each in given.items()}
        elif key == "settings":
            found[key] = by_type(settings, dict, key, SearchError)
        else:
            hint = type_of_key(SearchDefinition, key)
            found[key] = by_type(given, hint, key, SearchError)
    return found


def _typed_range(path: str, given: Any, settings: dict[str, Any]) -> Any:
    """The values that one setting may have; choices are of the setting's own type."""
    where = f"vary.{path}"
    if not isinstance(given, dict):
        return by_type(given, Varied, where, SearchError)
    choices = given.get("choices")
    if isinstance(choices, list):
        hint = setting_type(path, settings)
        choices = [by_type(each, hint, f"{where}.choices", SearchError) for each in choices]
    else:
        choices = by_type(choices, Any, f"{where}.choices", SearchError)
    others = {key: value for key, value in given.items() if key != "choices"}
    typed = by_type(others, Varied, where, SearchError)
    return {**typed, "choices": choices} if "choices" in given else typed


def make_search(raw: dict[str, Any]) -> SearchDefinition:
    """Check what a search file holds, but for its settings.

    Raises:
        SearchError: a line for each wrong key: what was given and what is expected.
    """
    wrong = []
    vary = raw.get("vary")
    for path, given in vary.items() if isinstance(vary, dict) else ():
        if not isinstance(given, dict):
            wrong.append(f"vary.{path}: given {given!r}; expected {{choices: [...]}} or {{low: ..., high: ...}}")
            continue
        try:
            Varied.model_validate(given)
        except ValidationError as error:
            wrong += [f"vary.{path}: {line}" for line in explain(given, lines_of(error), Varied, {})]
    if wrong:
        raise SearchError("\n".join(wrong))
    try:
        return SearchDefinition.model_validate(raw)
    except ValidationError as error:
        raise SearchError("\n".join(explain(raw, error.errors(), SearchDefinition, {}))) from None


def lines_of(error: ValidationError) -> list[Any]:
    """The errors of a value with several readings, such as int or float, as one error."""
    found = {tuple(item["loc"][:1]): item for item in error.errors()}
    return [{**item, "loc": loc} for loc, item in found.items()]


def check_search(definition: SearchDefinition) -> None:
    """Refuse a search that could not be carried out, before any work.

    Each value that a setting may have is tried alone on the shared settings; what does not go together with another
    varied setting shows in the trial that draws both.

    Raises:
        SearchError: the score, or a setting that varies, cannot be used. SettingsError, DataError, MethodError: the
            shared settings make no run.
    """
    if definition.score not in SCORES:
        raise SearchError(unknown_name("score", definition.score, SCORES))
    for path in definition.vary:
        section = path.split(".")[0]
        if section in SAME_FOR_ALL:
            raise SearchError(f"vary.{path}: {section} does not vary within a search: {SAME_FOR_ALL[section]}")
    if definition.score == NEIGHBOURS and "model.clusters" in definition.vary:
        raise SearchError(
            "vary.model.clusters: the score 'neighbours' ranks clusterings with the same number of clusters: set "
            "score to silhouette, or have the number chosen with model.clusters: auto"
        )
    if definition.sampler == "grid":
        for path, varied in definition.vary.items():
            if varied.choices is None and varied.step is None and not varied.whole:
                raise SearchError(f"vary.{path}: a grid needs its values: give choices, or a step")
    check_run(definition, definition.settings_with({}))
    for path, value in one_by_one(definition):
        try:
            check_run(definition, definition.settings_with({path: value}))
        except ShoalError as error:
            raise SearchError(f"vary.{path}: {value!r} cannot be used: {error}") from None


def one_by_one(definition: SearchDefinition) -> Iterator[tuple[str, Value]]:
    """Each setting that varies, with each value that is checked."""
    for path, varied in definition.vary.items():
        for value in varied.ends():
            yield path, value


def check_run(definition: SearchDefinition, settings: Settings) -> None:
    """Refuse settings that make no run, or one that has no such score.

    Raises:
        SearchError: the score needs what the data or the method do not have. MethodError, DataError: no run.
    """
    check_method(settings, places.store())
    check_validation(settings)
    method = METHODS[settings.method.name]
    if definition.score in OF_CLUSTERS and not method.finds_clusters:
        raise SearchError(
            f"the score {definition.score!r} is of clusters of samples, and method {settings.method.name!r} finds "
            "none: set score to a metric that it has, such as acc"
        )
    if definition.score == NEIGHBOURS and kind_of(settings.data.name) == "text":
        raise SearchError("the score 'neighbours' is for images and vectors: set score to another one")
    if definition.uses_labels:
        spec = known_spec(settings.data.name, settings.data.options, places.store())
        if spec.classes is None:
            raise SearchError(
                f"the score {definition.score!r} needs labels, and data set {settings.data.name!r} has none: set score "
                "to neighbours"
            )
