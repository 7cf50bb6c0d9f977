"""The schema of a run's settings, for settings files, the command line, Prefect's form and MLflow's parameters.

Methods, partitions and other parts declare their settings as frozen dataclasses; the pydantic models here are made from
them, so that each setting is declared once. This module reads nothing but what the caller passes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from pydantic import Field, ValidationError, model_validator

from shoal.core.errors import ShoalError, short_text, shown
from shoal.core.setting import FileFormat
from shoal.data.partition.schemes import SCHEMES, Auto, settle
from shoal.data.sets.prepare import kind_of
from shoal.data.views.augment import AugmentSettings
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
from shoal.engine.settings.typed_yaml import Argument, convert, convert_settings, drop_ambiguous, type_of_setting
from shoal.engine.settings.wrong_settings import Tagged, did_you_mean, explain
from shoal.engine.settings.yaml_text import Unquoted, read_yaml, read_yaml_file
from shoal.methods.contract.base import Method
from shoal.methods.contract.context import AggregationSettings, LocalSettings, ModelSettings
from shoal.methods.registry import METHODS

REPRESENTATION_PREFIX = "rotnet-"
"""Prefix of the names of sets of representations (`shoal.engine.store.represent`)."""
AUTO = "auto"
"""Value of `model.clusters` and of `method.name` that lets a rule choose before the run (`shoal.lifecycle.choosing` and
`shoal.lifecycle.choosing_method`)."""
DEFAULT_ROUNDS = 10


class SettingsError(ShoalError):
    """A setting is unknown, of the wrong type, or out of bounds."""


METHOD_SECTIONS: dict[str, type[Section]] = {
    AUTO: AutoMethodSection,
    **{name: section(method.Settings, ("name", name)) for name, method in METHODS.items()},
}
PARTITIONS: dict[str, type] = {Auto.kind: Auto, **SCHEMES}
PARTITION_SECTIONS = {kind: section(scheme, ("kind", kind)) for kind, scheme in PARTITIONS.items()}
TAGGED = {
    "method": Tagged("name", AUTO, METHOD_SECTIONS),
    "partition": Tagged("kind", Auto.kind, PARTITION_SECTIONS),
}
"""The sections that are one of several, by key."""

NAME_KEYS = {"method": "name", "partition": "kind", "data": "name"}
"""For sections that may be written as one word, the setting that the word is: `data: mine` is `data: {name: mine}`."""

SOURCES: dict[str, type] = {
    "model": ModelSettings,
    "local": LocalSettings,
    "augment": AugmentSettings,
    "aggregation": AggregationSettings,
}
"""The dataclasses of the sections that are the same for every method and scheme, by key."""

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
        """Give each section that is one of several its tag; without one it is the default."""
        if isinstance(raw, dict):
            raw = expand_names(raw)
            for key, tagged in TAGGED.items():
                value = raw.get(key)
                if isinstance(value, dict) and tagged.tag not in value:
                    raw[key] = {tagged.tag: tagged.default, **value}
            if isinstance(raw.get("partition"), dict) and raw["partition"].get("clients", 0) is None:
                # Only scheme auto may have no number of clients. A study that merges it with another scheme means the
                # default number of that scheme.
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
        data_kind: str | None = "vector"  # representations of any set are vectors
        if not self.data.name.startswith(REPRESENTATION_PREFIX):
            data_kind = kind_of(self.data.name)
        local = method.local_defaults_for(self.dataclass("method"), data_kind)
        self._check_budget(method)
        for key, defaults in (("local", local), ("model", method.model_defaults)):
            values = {**dataclasses.asdict(defaults), **drop_unset(getattr(self, key).model_dump())}
            if values.get("steps"):
                values["epochs"] = None  # the budget is in steps
            object.__setattr__(self, key, type(getattr(self, key))(**values))
        return self

    def _check_budget(self, method: type[Method]) -> None:
        """Refuse a budget in steps for a method that counts none."""
        if self.local.steps and not method.counts_steps:
            fit = ", ".join(name for name, kind in METHODS.items() if kind.counts_steps)
            raise ValueError(
                f"local.steps: method {method.name!r} does not count steps: set local.epochs, or one of these methods: "
                f"{fit}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return nested dictionaries of JSON values."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """Return the sha256 of the settings that decide the numbers; those without an effect do not count."""
        decisive = {k: v for k, v in self.to_json().items() if k not in ("tracking", "checkpoint")}
        if not self.chooses_clusters:
            del decisive["choose"]
        if self.model.start == "random":
            del decisive["model"]["start"]
        for key in ("steps", "decorrelation"):
            if not decisive["local"][key]:
                del decisive["local"][key]
        # Batched clients agree with single clients only up to rounding.
        bits_depend_on = {
            "batched": self.workers.batched > 1,
        }
        named = ("precision", "device", *(name for name, used in bits_depend_on.items() if used))
        decisive["workers"] = {k: decisive["workers"][k] for k in named}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def with_scheme(self, own_clients: bool) -> Settings:
        """Return the same settings with the partition scheme that `partition.kind: auto` means for the data set.

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
        """Return the same settings with the chosen method; see `raw_with_method`."""
        return make_settings(self.raw_with_method(chosen))

    def raw_with_method(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return nested settings with the chosen method, without the method's own defaults.

        Args:
            chosen: nested settings that the rule sets, with `method.name`; those that a user named here prevail.

        Raises:
            SettingsError: these settings name a setting that the chosen method does not have.
        """
        values = self.to_json()
        for key in ("model", "local"):
            values[key] = drop_unset(values[key])
        if self.rounds is None:
            del values["rounds"]
        own = {key: value for key, value in values.pop("method").items() if key != "name"}
        name = chosen["method"]["name"]
        for key in own:
            if name not in methods_with(key):
                raise SettingsError(no_such_setting(key, name))
        return merge(dict(chosen), {"method": own}, values)

    @property
    def chooses_clusters(self) -> bool:
        """Whether the number of clusters must still be chosen."""
        return bool(self.model.clusters == AUTO)

    def with_clusters(self, clusters: int) -> Settings:
        """Return the same settings with this number of clusters, and the defaults of section `choose`."""
        values = {key: value for key, value in self.to_json().items() if key != "choose"}
        return make_settings({**values, "model": {**values["model"], "clusters": clusters}})

    def dataclass(self, key: str) -> Any:
        """Return a section (method, partition, model, local, ...) as the frozen dataclass that declares it.

        If the number of clusters must still be chosen, it is the largest that may be chosen.
        """
        values = getattr(self, key).model_dump()
        if key in ("model", "local"):
            values = drop_unset(values)
        if key == "model" and self.chooses_clusters:
            values["clusters"] = self.choose.max_clusters
        source = _source(key, values)
        assert source is not None, f"{key} is still auto"
        if key in TAGGED:
            del values[TAGGED[key].tag]
        return to_dataclass(source, values)


def expand_names(raw: dict[str, Any]) -> dict[str, Any]:
    """Return unchecked settings with a section in place of each word that stands for one.

    >>> expand_names({"data": "mine", "method": {"name": "fedcc"}})
    {'data': {'name': 'mine'}, 'method': {'name': 'fedcc'}}
    """
    found = dict(raw)
    for key, name in NAME_KEYS.items():
        value = raw.get(key)
        if isinstance(value, str) or (isinstance(value, Unquoted) and value.kind != "null"):
            found[key] = {name: value}
    return found


def drop_unset(values: dict[str, Any]) -> dict[str, Any]:
    """Return a section without the settings that nobody has set."""
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
            raise ValueError(f"method.{shown(key)}: no method has such a setting{did_you_mean(key, known)}")


def no_such_setting(key: str, method: str) -> str:
    """Return the sentence that the chosen method lacks a setting."""
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
        raw = expand_names(raw)
    for override in overrides:
        _apply(raw, override)
    raw = merge(raw, changes)
    try:
        typed = typed_settings(raw)
    except SettingsError as problem:
        raise SettingsError("\n".join([str(problem), *further_problems(raw)])) from None
    _read_files(typed)
    return make_settings(typed)


def further_problems(raw: dict[str, Any]) -> list[str]:
    """Return what else is wrong with settings that have ambiguous values: at most one text."""
    try:
        make_settings(typed_settings(drop_ambiguous(raw)))
    except SettingsError as problem:
        return [str(problem)]
    return []


def typed_settings(raw: dict[str, Any]) -> dict[str, Any]:
    """Return unchecked nested settings with values from files and `--set` converted to the types of their settings.

    Raises:
        SettingsError: a value with more than one meaning.
    """
    return convert_settings(raw, Settings, TAGGED, SettingsError)


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
                values[item.name] = _read_file(f"{key}.{item.name}", file, Path(values[item.name]))


def _read_file(setting: str, file: FileFormat, path: Path) -> Any:
    """Return the value of a setting from its file."""
    try:
        return file.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{setting}: {file.name} {shown(path, 200)} cannot be read: {short_text(error)}") from None
    except ShoalError as error:
        raise SettingsError(f"{setting}: {file.name} {shown(path, 200)}: {error}") from None


def _source(key: str, values: dict[str, Any]) -> type | None:
    """Return the dataclass of a section, checked or not; None for an unknown method or scheme, and for auto."""
    if key not in TAGGED:
        return SOURCES[key]
    name = str(values.get(TAGGED[key].tag, TAGGED[key].default))
    if key == "partition":
        return PARTITIONS.get(name)
    if name not in METHODS:
        return None
    return METHODS[name].Settings


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
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
    is_tag = len(path) == 1 and path[0] in TAGGED and last == TAGGED[path[0]].tag
    if is_tag:
        value = convert(value, str, key.strip(), SettingsError)
    place = raw
    for step in path:
        inner = place.get(step)
        if isinstance(inner, str) and step in NAME_KEYS:
            inner = {NAME_KEYS[step]: inner}
        if not isinstance(inner, dict):
            inner = {}
        place[step] = inner
        place = inner
    if is_tag and convert(place.get(last), str, key.strip(), SettingsError) != value:
        place.clear()  # the other keys belong to another method or scheme
    place[last] = value
