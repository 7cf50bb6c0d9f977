"""The schema of a run's settings, for settings files, the command line, Prefect's form and MLflow's parameters.

Methods, partitions and other parts declare their settings as frozen dataclasses; the pydantic models here are made from
them, so that each setting is declared once. This module reads nothing but what the caller passes.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from pydantic import Field, ValidationError, model_validator

from shoal.core.errors import ShoalError, brief, shown
from shoal.core.setting import FileFormat
from shoal.data.augment import OF_ARRAYS, AugmentSettings
from shoal.data.partition.schemes import SCHEMES, Auto, settle
from shoal.data.prepare import kind_of
from shoal.engine.settings.merge import merge
from shoal.engine.settings.sections import (
    AutoMethodSection,
    CheckpointSection,
    ChooseSection,
    DataSection,
    EvaluateSection,
    ParticipationSection,
    PrivacySection,
    Section,
    TrackingSection,
    WorkersSection,
    local_section,
    model_section,
    section,
    tagged_union,
    to_dataclass,
)
from shoal.engine.settings.typed_yaml import Argument, by_settings, by_type, type_of_setting, without_ambiguous
from shoal.engine.settings.wrong_settings import Tagged, explain
from shoal.engine.settings.yaml_text import Unquoted, read_yaml, read_yaml_file
from shoal.methods.contract.base import Method
from shoal.methods.contract.context import AggregationSettings, LocalSettings, ModelSettings
from shoal.methods.registry import METHODS

REPRESENTATIONS = "rotnet-"
"""Prefix of the names of sets of representations (`shoal.engine.store.represent`, whose import takes longer)."""


AUTO = "auto"
"""Value of `model.clusters` with which the number is chosen before the run (`shoal.lifecycle.choosing`), and of
`method.name` with which the method is (`shoal.lifecycle.choosing_method`)."""
DEFAULT_ROUNDS = 10


class SettingsError(ShoalError):
    """A setting is unknown, of the wrong type, or out of bounds."""


METHOD_SECTIONS: dict[str, type[Section]] = {
    AUTO: AutoMethodSection,
    **{name: section(method.Settings, ("name", name)) for name, method in METHODS.items()},
}
PARTITIONS: dict[str, type] = {Auto.kind: Auto, **SCHEMES}
PARTITION_SECTIONS = {kind: section(scheme, ("kind", kind)) for kind, scheme in PARTITIONS.items()}
TAGS = ((["method"], "name"), (["partition"], "kind"))
TAGGED = {
    "method": Tagged("name", AUTO, METHOD_SECTIONS),
    "partition": Tagged("kind", Auto.kind, PARTITION_SECTIONS),
}

NAME_KEYS = {"method": "name", "partition": "kind", "data": "name"}
"""Sections that one word stands for, and the setting that it is: `data: mine` is short for `data: {name: mine}`."""

SOURCES: dict[str, type] = {
    "model": ModelSettings,
    "local": LocalSettings,
    "augment": AugmentSettings,
    "aggregation": AggregationSettings,
}
"""The dataclass of each section that is the same for every method and scheme."""


if TYPE_CHECKING:
    # These types are made at run time, which type checkers do not see.
    MethodUnion: TypeAlias = Any
    PartitionUnion: TypeAlias = Any
    LocalSection: TypeAlias = Any
    ModelSection: TypeAlias = Any
    AugmentSection: TypeAlias = Any
    AggregationSection: TypeAlias = Any
    Rounds: TypeAlias = int
else:
    LocalSection = local_section(LocalSettings)
    ModelSection = model_section(ModelSettings)
    AugmentSection = section(AugmentSettings)
    AggregationSection = section(AggregationSettings)
    Rounds = Union[int, None]  # noqa: UP007 (the type is a value)
    MethodUnion = tagged_union("name", METHOD_SECTIONS.values())
    PartitionUnion = tagged_union("kind", PARTITION_SECTIONS.values())


class Settings(Section):
    """All settings of a run: what it computes, where it runs and where it is shown."""

    method: MethodUnion = Field(default_factory=AutoMethodSection)
    data: DataSection = DataSection()
    partition: PartitionUnion = Field(default_factory=PARTITION_SECTIONS[Auto.kind])
    model: ModelSection = ModelSection()
    choose: ChooseSection = ChooseSection()
    rounds: Rounds = Field(
        None,  # type: ignore[assignment]
        ge=1,
        description=f"number of communication rounds; none: {DEFAULT_ROUNDS}, or what method auto sets",
    )
    local: LocalSection = LocalSection()
    augment: AugmentSection = AugmentSection()
    participation: ParticipationSection = ParticipationSection()
    aggregation: AggregationSection = AggregationSection()
    privacy: PrivacySection = PrivacySection()
    evaluate: EvaluateSection = EvaluateSection()
    checkpoint: CheckpointSection = CheckpointSection()
    workers: WorkersSection = WorkersSection()
    tracking: TrackingSection = TrackingSection()
    seed: int = Field(0, ge=0, description="seed of all random draws of the run")

    @model_validator(mode="before")
    @classmethod
    def _tags(cls, raw: Any) -> Any:
        # A section without its tag means the default one.
        if isinstance(raw, dict):
            raw = spelled_out(raw)
            for key, tagged in TAGGED.items():
                value = raw.get(key)
                if isinstance(value, dict) and tagged.tag not in value:
                    raw[key] = {tagged.tag: tagged.default, **value}
            if isinstance(raw.get("partition"), dict) and raw["partition"].get("clients", 0) is None:
                # No number in `auto`, which a study merges with another scheme: the number of that scheme.
                raw["partition"] = {k: v for k, v in raw["partition"].items() if k != "clients"}
        return raw

    @model_validator(mode="after")
    def _defaults(self) -> Settings:
        if self.chooses_method:
            check_some_method_has(self.method.model_extra or {})
            return self  # the defaults are those of the method that will be chosen
        if self.rounds is None:
            object.__setattr__(self, "rounds", DEFAULT_ROUNDS)
        method = METHODS[self.method.name]
        kind: str | None = "vector"  # of representations of any set
        if not self.data.name.startswith(REPRESENTATIONS):
            kind = kind_of(self.data.name)
        local = method.local_defaults_for(self.dataclass("method"), kind)
        self._check_budget(method)
        for key, defaults in (("local", local), ("model", method.model_defaults)):
            values = {k: v for k, v in getattr(self, key).model_dump().items() if v is not None}
            filled = {**dataclasses.asdict(defaults), **values}
            if filled.get("steps"):
                filled["epochs"] = None  # the budget is said in steps
            object.__setattr__(self, key, type(getattr(self, key))(**filled))
        return self

    def _check_budget(self, method: type[Method]) -> None:
        """Refuse a budget in steps for a method that counts none."""
        if self.local.steps and not method.counts_steps:
            fit = ", ".join(name for name, kind in METHODS.items() if kind.counts_steps)
            raise ValueError(f"local.steps: method {method.name!r} counts none; these do: {fit}")

    def to_json(self) -> dict[str, Any]:
        """Return nested dictionaries of JSON values."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """Return the sha256 of the settings that decide the numbers: not of where the run is done and shown."""
        decisive = {k: v for k, v in self.to_json().items() if k not in ("tracking", "checkpoint")}
        if not self.chooses_clusters:
            del decisive["choose"]  # they have no effect
        if self.model.start == "random":
            decisive["model"] = {k: v for k, v in decisive["model"].items() if k != "start"}
        if not self.local.steps:
            del decisive["local"]["steps"]  # nor has it
        if not self.local.decorrelation:
            # Runs from before this setting are still found as like.
            decisive["local"] = {k: v for k, v in decisive["local"].items() if k != "decorrelation"}
        # Where they are left out, runs on images from before these settings are still found as like.
        views = {k: v for k, v in decisive["augment"].items() if v is not None or k not in OF_ARRAYS}
        decisive["augment"] = views
        # Batched clients and sums of groups agree with single clients only up to rounding.
        bits_depend_on = {
            "batched": self.workers.batched > 1,
            "summed": self.workers.summed > 1,
            "deterministic": self.workers.deterministic,
        }
        named = ("precision", "device", *(name for name, used in bits_depend_on.items() if used))
        decisive["workers"] = {k: decisive["workers"][k] for k in named}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def settled(self, own_clients: bool) -> Settings:
        """Return the same settings with the scheme of partitions that `partition.kind: auto` means for the data set.

        Args:
            own_clients: whether the data set names its clients.
        """
        if self.partition.kind != Auto.kind:
            return self
        scheme = settle(self.dataclass("partition"), own_clients)
        return make_settings({**self.to_json(), "partition": {"kind": scheme.kind, **dataclasses.asdict(scheme)}})

    @property
    def chooses_method(self) -> bool:
        """Whether the method must still be chosen."""
        return bool(self.method.name == AUTO)

    def with_method(self, chosen: Mapping[str, Any]) -> Settings:
        """Return the same settings with a method that was chosen; arguments and errors as of `raw_with_method`."""
        return make_settings(self.raw_with_method(chosen))

    def raw_with_method(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return nested settings with a method that was chosen, whose own defaults are not filled in.

        Args:
            chosen: nested settings, `method.name` among them; what these settings name wins.

        Raises:
            SettingsError: these settings name a setting that the chosen method does not have.
        """
        values = self.to_json()
        for key in ("model", "local"):
            values[key] = named(values[key])
        if self.rounds is None:
            del values["rounds"]
        own = {key: value for key, value in values.pop("method").items() if key != "name"}
        name = chosen["method"]["name"]
        known = {item.name for item in dataclasses.fields(METHODS[name].Settings)}
        for key in own:
            if key not in known:
                raise SettingsError(no_such_setting(key, name))
        return merge(dict(chosen), {"method": own}, values)

    @property
    def chooses_clusters(self) -> bool:
        """Whether the number of clusters must still be chosen."""
        return bool(self.model.clusters == AUTO)

    def with_clusters(self, clusters: int) -> Settings:
        """Return the same settings with this number of clusters, and default settings of the choice."""
        values = {key: value for key, value in self.to_json().items() if key != "choose"}
        return make_settings({**values, "model": {**values["model"], "clusters": clusters}})

    def dataclass(self, key: str) -> Any:
        """Return a section (method, partition, model, local, ...) as the frozen dataclass that declares it.

        If the number of clusters must still be chosen, it is the largest that may be chosen.
        """
        values = getattr(self, key).model_dump()
        if key in ("model", "local"):
            values = named(values)
        if key == "model" and self.chooses_clusters:
            values["clusters"] = self.choose.max_clusters
        if key == "method":
            source = METHODS[values.pop("name")].Settings
        elif key == "partition":
            source = PARTITIONS[values.pop("kind")]
        else:
            source = SOURCES[key]
        return to_dataclass(source, values)


def spelled_out(raw: dict[str, Any]) -> dict[str, Any]:
    """Return unchecked settings in which each word that stands for a section is that section.

    >>> spelled_out({"data": "mine", "method": {"name": "fedcc"}})
    {'data': {'name': 'mine'}, 'method': {'name': 'fedcc'}}
    """
    found = dict(raw)
    for key, name in NAME_KEYS.items():
        value = raw.get(key)
        if isinstance(value, str) or (isinstance(value, Unquoted) and value.kind != "null"):
            found[key] = {name: value}
    return found


def named(values: dict[str, Any]) -> dict[str, Any]:
    """Return a section without the settings that nobody named."""
    return {key: value for key, value in values.items() if value is not None}


def methods_with(key: str) -> list[str]:
    """Return the methods that have a setting."""
    return [name for name, kind in METHODS.items() if key in {item.name for item in dataclasses.fields(kind.Settings)}]


def check_some_method_has(keys: Mapping[str, Any]) -> None:
    """Refuse settings that no method has.

    Raises:
        ValueError: names the setting.
    """
    for key in keys:
        if not methods_with(key):
            own = {item.name for kind in METHODS.values() for item in dataclasses.fields(kind.Settings)}
            known = sorted({"name", *own})
            nearest = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise ValueError(f"method.{shown(key)}: there is no such setting of any method{hint}")


def no_such_setting(key: str, method: str) -> str:
    """Return the sentence about a setting that the method that was chosen does not have."""
    fit = methods_with(key)
    advice = "leave it out"
    if fit:
        advice = f"leave it out, or set method.name to one that has it: {', '.join(fit)}"
    return f"method.{shown(key)}: method auto chose {method}, which has no such setting: {advice}"


def flatten(settings: Settings) -> dict[str, Any]:
    """Return settings as one level of `section.key: value`, for MLflow's parameters and tables."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    walk("", settings.to_json())
    return flat


def make_settings(raw: dict[str, Any]) -> Settings:
    """Return settings from nested dictionaries, after checking them.

    Raises:
        SettingsError: names the path of each wrong setting, its value and what is allowed.
    """
    try:
        return Settings(**raw)
    except ValidationError as error:
        raise SettingsError("\n".join(explain(raw, error.errors(), Settings, TAGGED))) from None


def load_settings(
    path: Path | None = None, overrides: Sequence[str] = (), changes: dict[str, Any] | None = None
) -> Settings:
    """Return settings from a YAML file and `key.path=value` overrides, with defaults for all others.

    An override of `method.name` or `partition.kind` with another value drops the file's other keys of that section,
    which belong to the former method or scheme.

    Args:
        path: the file.
        overrides: from the command line.
        changes: nested dictionaries that override both.

    Raises:
        SettingsError: an unreadable file, a malformed override, or a wrong setting.
    """
    raw: dict[str, Any] = {}
    if path is not None:
        raw = read_yaml_file(path, "settings file", SettingsError, keep_text=True)
        if raw is None:
            raw = {}
        if not isinstance(raw, dict):
            raise SettingsError(f"settings file {path} holds a {type(raw).__name__}, expected keys and values")
        raw = spelled_out(raw)
    for override in overrides:
        _apply(raw, override)
    raw = merge(raw, changes)
    try:
        typed = typed_settings(raw)
    except SettingsError as problem:
        raise SettingsError("\n".join([str(problem), *other_problems(raw)])) from None
    _read_files(typed)
    return make_settings(typed)


def other_problems(raw: dict[str, Any]) -> list[str]:
    """Return what is wrong with unchecked settings beside their ambiguous values: a sentence, or none."""
    try:
        make_settings(typed_settings(without_ambiguous(raw)))
    except SettingsError as problem:
        return [str(problem)]
    return []


def typed_settings(raw: dict[str, Any]) -> dict[str, Any]:
    """Return unchecked nested settings, whose values from files and `--set` have the types of their settings.

    Raises:
        SettingsError: a value with more than one meaning.
    """
    return by_settings(raw, Settings, TAGGED, SettingsError)


def setting_type(path: str, raw: dict[str, Any]) -> Any:
    """Return the type of the setting with a dotted key, such as local.lr, of the method and scheme that `raw` names."""
    return type_of_setting(path, raw, Settings, TAGGED)


def _read_files(raw: dict[str, Any]) -> None:
    """Replace the name of a file by its content, for settings that declare such a file."""
    for key in (*TAGGED, *SOURCES):
        values = raw.get(key)
        if not isinstance(values, dict) or (source := _source(key, values)) is None:
            continue
        for item in dataclasses.fields(source):
            file: FileFormat | None = item.metadata.get("file")
            if file is not None and isinstance(values.get(item.name), str):
                path = Path(values[item.name])
                values[item.name] = _content(f"{key}.{item.name}", file, path)


def _content(setting: str, file: FileFormat, path: Path) -> Any:
    """Return the value of a setting from its file."""
    try:
        return file.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{setting}: {file.name} {shown(path, 200)} cannot be read: {brief(error)}") from None
    except ShoalError as error:
        raise SettingsError(f"{setting}: {file.name} {shown(path, 200)}: {error}") from None


def _source(key: str, values: dict[str, Any]) -> type | None:
    """Return the dataclass of a section of unchecked settings; None for an unknown method or scheme."""
    if key not in TAGGED:
        return SOURCES[key]
    name = str(values.get(TAGGED[key].tag, TAGGED[key].default))
    if key == "partition":
        return PARTITIONS.get(name)
    if name not in METHODS:
        return None
    return METHODS[name].Settings


def nested(overrides: Sequence[str]) -> dict[str, Any]:
    """Return `key.path=value` overrides as nested dictionaries.

    Raises:
        SettingsError: a malformed override.
    """
    raw: dict[str, Any] = {}
    for override in overrides:
        _apply(raw, override)
    return typed_settings(raw)


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"--set {override[:80]!r}: expected key.path=value, for example --set local.epochs=1")
    where = f"--set {override[:80]!r}"
    *path, last = key.strip().split(".")
    value: Any = Argument(text, where)  # to be read when the type of the setting is known
    if not path:
        value = read_yaml(text, where, SettingsError, keep_text=True)
    if (path, last) in TAGS:
        value = by_type(value, str, key.strip(), SettingsError)
    place = raw
    for step in path:
        inner = place.get(step)
        if isinstance(inner, str) and step in NAME_KEYS:
            inner = {NAME_KEYS[step]: inner}
        if not isinstance(inner, dict):
            inner = {}
        place[step] = inner
        place = inner
    if (path, last) in TAGS and by_type(place.get(last), str, key.strip(), SettingsError) != value:
        place.clear()
    place[last] = value
