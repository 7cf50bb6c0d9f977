"""The settings of a run: one frozen dataclass for settings files, the command line, Prefect's form and MLflow.

Every number and switch is read as text and typed by its setting, so that a data set named 007, no or 2024 keeps its
name. `make_settings` is the only door: it fills in the method's defaults, and pydantic checks the result. Nothing is
written into settings afterwards; `resolve` returns new ones. This module reads nothing but what the caller passes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, Union, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from shoal.core.errors import ShoalError, shown
from shoal.core.setting import setting
from shoal.data.partition.schemes import SCHEMES, Auto, settle
from shoal.data.sets.prepare import kind_of
from shoal.data.views.augment import AugmentSettings
from shoal.engine.settings.merge import merge
from shoal.engine.settings.sections import (
    AutoMethod,
    CheckpointSection,
    ChooseSection,
    DataSection,
    EvaluateSection,
    ParticipationSection,
    PrivacySection,
    TrackingSection,
    WorkersSection,
)
from shoal.engine.settings.wrong_settings import TaggedSection, did_you_mean, explain
from shoal.engine.settings.yaml_text import read_yaml, read_yaml_file
from shoal.methods.contract.context import AggregationSettings, LocalSettings, ModelSettings
from shoal.methods.registry import METHODS

AUTO = "auto"
"""Value of `model.clusters` and of `method.name` that lets a rule choose before the run (`shoal.lifecycle.choosing` and
`shoal.lifecycle.choosing_method`)."""
DEFAULT_ROUNDS = 10
MAX_SEED = 2**63 - 1
NAME_KEYS = {"method": "name", "partition": "kind", "data": "name"}
"""For sections that may be written as one word, the setting that the word is: `data: mine` is `data: {name: mine}`."""
TAGS = ("method=", "method.name=", "partition=", "partition.kind=")
"""Overrides that name a method or a scheme begin so."""
NULLS = ("", "~", "null", "none")
"""Words that mean None, for settings that may be None."""
LOCAL_TO_A_MACHINE = ("tracking", "checkpoint", "workers")
"""Sections that change no number, except `NUMERIC` of workers."""
NUMERIC = ("precision", "device", "batched")


class SettingsError(ShoalError):
    """A setting is unknown, of the wrong type, or out of bounds."""


def named(name: str, source: type) -> type:
    """Return the settings of a method as a dataclass that begins with the method's name."""
    tag = dataclasses.make_dataclass("Tag", [("name", Literal[name], name)], frozen=True)
    made = dataclasses.make_dataclass(name, [], bases=(source, tag), frozen=True)
    made.__doc__ = source.__doc__
    return made


def opened(source: type, changed: Mapping[str, Any] | None = None, check: Any = None) -> type:
    """Return a dataclass whose settings may be None, until the method is known that has their defaults.

    Args:
        source: the dataclass of the section, of which the result is a subclass.
        changed: types of settings that differ from those of the source.
        check: raises ValueError where the settings do not go together.
    """
    hints = {key: hint | None for key, hint in get_type_hints(source).items()} | dict(changed or {})
    fields: list[Any] = []
    for item in dataclasses.fields(source):
        metadata: Mapping[str, Any] = item.metadata
        if item.name in (changed or {}):
            metadata = {"description": metadata["description"]}
        fields.append((item.name, hints[item.name], field(default=None, metadata=metadata)))
    namespace = {"__doc__": source.__doc__, "__post_init__": check or (lambda self: None)}
    return dataclasses.make_dataclass(source.__name__, fields, bases=(source,), frozen=True, namespace=namespace)


def one_of(key: str, members: Mapping[str, type]) -> Any:
    """Return the type of a section that is one of several, of which the value of a key names one.

    Its schema is `anyOf`, the smallest member first: Prefect's form offers a list of members, and of a given value it
    shows the first one that has most of its keys.
    """

    def offer_a_list(schema: dict[str, Any]) -> None:
        schema["anyOf"] = schema.pop("oneOf")

    ordered = sorted(members.values(), key=lambda member: len(dataclasses.fields(member)))
    union: Any = Union[tuple(ordered)]  # noqa: UP007 (the type is a value)
    return Annotated[union, Field(discriminator=key, json_schema_extra=offer_a_list)]


def _check_clusters(model: Any) -> None:
    if model.clusters == 1:
        raise ValueError(
            "model.clusters: one cluster would hold every sample: set 2 or more, or auto, which chooses the number"
        )


def _check_budget(local: Any) -> None:
    if local.steps and local.epochs is not None:
        raise ValueError("local.steps and local.epochs both set how long a client trains in a round: leave one out")


METHOD_SECTIONS: dict[str, type] = {
    AUTO: AutoMethod,
    **{name: named(name, method.Settings) for name, method in METHODS.items()},
}
PARTITION_SECTIONS: dict[str, type] = {Auto.kind: Auto, **SCHEMES}
TAGGED = {
    "method": TaggedSection("name", AUTO, METHOD_SECTIONS),
    "partition": TaggedSection("kind", Auto.kind, PARTITION_SECTIONS),
}
"""The sections that are one of several, by key."""
if TYPE_CHECKING:
    # These types are made at run time, which type checkers do not see.
    Method: TypeAlias = Any
    Partition: TypeAlias = Any
    Model: TypeAlias = Any
    Local: TypeAlias = Any
    Rounds: TypeAlias = int  # none only until method auto has chosen
else:
    Method = one_of("name", METHOD_SECTIONS)
    Partition = one_of("kind", PARTITION_SECTIONS)
    Model = opened(ModelSettings, {"clusters": Annotated[int, Field(ge=0)] | Literal["auto"] | None}, _check_clusters)
    Local = opened(LocalSettings, check=_check_budget)
    Rounds = int | None


@dataclass(frozen=True)
class Settings:
    """All settings of a run: what it computes, where it runs and where it is shown."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    method: Method = field(default_factory=AutoMethod)
    data: DataSection = field(default_factory=DataSection)
    partition: Partition = field(default_factory=Auto)
    model: Model = field(default_factory=Model)
    choose: ChooseSection = field(default_factory=ChooseSection)
    rounds: Rounds = setting(
        None, f"number of communication rounds; none: {DEFAULT_ROUNDS}, or what method auto sets", ge=1
    )
    local: Local = field(default_factory=Local)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    participation: ParticipationSection = field(default_factory=ParticipationSection)
    aggregation: AggregationSettings = field(default_factory=AggregationSettings)
    privacy: PrivacySection = field(default_factory=PrivacySection)
    evaluate: EvaluateSection = field(default_factory=EvaluateSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    workers: WorkersSection = field(default_factory=WorkersSection)
    tracking: TrackingSection = field(default_factory=TrackingSection)
    seed: int = setting(0, "seed of all random draws of the run", ge=0, le=MAX_SEED)

    @model_validator(mode="before")
    @classmethod
    def _read(cls, raw: Any) -> Any:
        """Return what pydantic checks: of settings that are checked already, their values again."""
        if isinstance(raw, Settings):
            raw = raw.to_json()
        return completed(raw) if isinstance(raw, Mapping) else raw

    def __post_init__(self) -> None:
        if self.chooses_method:
            check_some_method_has(self.method.settings)
        elif self.local.steps and "steps" not in METHODS[self.method.name].local_options:
            fit = ", ".join(name for name, kind in METHODS.items() if "steps" in kind.local_options)
            raise ValueError(
                f"local.steps: method {self.method.name!r} does not count steps: set local.epochs, or one of these "
                f"methods: {fit}"
            )

        if self.privacy.sums != "plain":
            check_summed(self)

    @property
    def chooses_method(self) -> bool:
        """Whether the method must still be chosen."""
        return bool(self.method.name == AUTO)

    @property
    def chooses_clusters(self) -> bool:
        """Whether the number of clusters must still be chosen."""
        return bool(self.model.clusters == AUTO)

    @property
    def largest_model(self) -> ModelSettings:
        """The network; where the number of clusters must still be chosen, with the largest that may be chosen."""
        model: ModelSettings = self.model
        if self.chooses_clusters:
            return dataclasses.replace(model, clusters=self.choose.max_clusters)
        return model

    def to_json(self) -> dict[str, Any]:
        """Return nested dictionaries of JSON values."""
        values: dict[str, Any] = _plain(self)
        return values

    def digest(self) -> str:
        """Return the sha256 of the settings that decide the numbers."""
        values = self.to_json()
        decisive = {key: value for key, value in values.items() if key not in LOCAL_TO_A_MACHINE}
        decisive["workers"] = {key: values["workers"][key] for key in NUMERIC}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def check_summed(settings: Settings) -> None:
    """Refuse what needs single messages where the server reads sums alone.

    Raises:
        ValueError: names the setting.
    """
    kind = METHODS.get(settings.method.name)
    wrong = {
        "method.name (of which only methods that average models, fedkmeans and fedgmm need sums alone)": kind is None
        or not (kind.averages or kind.totals),
        "model.clusters: auto": settings.chooses_clusters,
        # With noise they are drawn, without local centres.
        "method.landmarks": bool(getattr(settings.method, "landmarks", 0)) and settings.privacy.clip is None,
        "aggregation.rule and aggregation.clip": not settings.aggregation.is_mean,
        "participation.buffer": settings.participation.buffer is not None,
    }
    for what, needs_messages in wrong.items():
        if needs_messages:
            raise ValueError(
                f"privacy.sums={settings.privacy.sums} and {what} exclude each other: set privacy.sums=plain"
            )


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def completed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return unchecked settings as text, with the names of method and scheme, and with the method's defaults."""
    values: dict[str, Any] = expand_names(as_text(raw))
    for key, tagged in TAGGED.items():
        section = values.setdefault(key, {})
        if isinstance(section, dict):
            values[key] = {tagged.tag: tagged.default, **section}
    kinds: dict[str, Any] = get_type_hints(Settings, include_extras=False)
    kinds |= {key: tagged.chosen(values[key]) for key, tagged in TAGGED.items()}
    values = {key: with_nulls(value, kinds.get(key)) for key, value in values.items()}
    partition = values["partition"]
    if isinstance(partition, dict) and partition.get("clients", 0) is None:
        del partition["clients"]  # the default number of the scheme, where settings of another one were merged
    method = values["method"]
    if isinstance(method, dict) and method["name"] == AUTO:
        beside = {key: value for key, value in method.items() if key not in ("name", "settings")}
        told = method.get("settings") or {}
        if isinstance(told, dict):  # else it is named when it is checked
            values["method"] = {"name": AUTO, "settings": {**told, **beside}}
        return values  # the defaults are those of the method that will be chosen
    return _with_defaults(values)


def as_text(value: Any) -> Any:
    """Return nested values in which numbers and switches are text, as in a file."""
    if isinstance(value, Mapping):
        return {str(key): as_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_text(item) for item in value]
    if isinstance(value, bool):
        return str(value).lower()
    return value if value is None else str(value)


def with_nulls(value: Any, hint: Any) -> Any:
    """Return text with None for the words that mean it, where the type of the setting has None."""
    if isinstance(value, dict) and dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return {key: with_nulls(item, hints.get(key)) for key, item in value.items()}
    if isinstance(value, str) and value.lower() in NULLS and type(None) in get_args(hint):
        return None
    return value


def _with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the defaults of their method; unchanged where the method's own settings are wrong."""
    try:
        method = _adapter(METHOD_SECTIONS[values["method"]["name"]]).validate_python(values["method"])
    except (KeyError, TypeError, ValidationError):
        return values  # an error that says more follows
    kind = METHODS[method.name]
    data = values.get("data", {})
    name = str(data.get("name", DataSection.name)) if isinstance(data, dict) else ""
    defaults = {"local": kind.local_defaults_for(method, kind_of(name)), "model": kind.model_defaults}
    for key, section in defaults.items():
        given = values.get(key, {})
        if not isinstance(given, dict):
            continue
        given = drop_unset(given)
        filled = {**_plain(section), **given}
        if key == "local" and given.get("steps", "0") != "0" and "epochs" not in given:
            filled["epochs"] = None  # the budget is in steps
        values[key] = filled
    if values.get("rounds") is None:
        values["rounds"] = DEFAULT_ROUNDS
    return values


def expand_names(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return unchecked settings with a section in place of each word that stands for one.

    >>> expand_names({"data": "mine", "method": {"name": "fedcc"}})
    {'data': {'name': 'mine'}, 'method': {'name': 'fedcc'}}
    """
    return {
        key: {NAME_KEYS[key]: value} if key in NAME_KEYS and isinstance(value, str) else value
        for key, value in raw.items()
    }


def drop_unset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section without the settings that nobody has set."""
    return {key: value for key, value in values.items() if value is not None}


def make_settings(raw: Mapping[str, Any]) -> Settings:
    """Return settings from nested dictionaries, after checking them.

    Raises:
        SettingsError: names the path of each wrong setting, its value and what is allowed.
    """
    try:
        settings: Settings = _adapter(Settings).validate_python(dict(raw))
    except ValidationError as error:
        sentences = explain(completed(raw), error.errors(), Settings, TAGGED)
        raise SettingsError("\n".join(sentences)) from None
    return settings


def resolve(
    settings: Settings,
    *,
    own_clients: bool | None = None,
    method: Mapping[str, Any] | None = None,
    clusters: int | None = None,
) -> Settings:
    """Return settings in which `auto` is replaced by what the data say.

    Args:
        settings: of a run.
        own_clients: whether the data set names its clients, for `partition.kind`.
        method: nested settings that a rule chose, for `method.name`; see `with_method`.
        clusters: the number that was chosen, for `model.clusters`.

    Raises:
        SettingsError: the chosen method lacks a setting that was named.
    """
    values = settings.to_json()
    if method is not None:
        values = with_method(settings, method)
    if own_clients is not None and settings.partition.kind == Auto.kind:
        values["partition"] = _plain(settle(settings.partition, own_clients))
    if clusters is not None:
        values["model"]["clusters"] = clusters
        del values["choose"]
    return make_settings(values)


def with_method(settings: Settings, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with the chosen method, without the method's own defaults.

    Args:
        settings: with `method.name` auto.
        chosen: nested settings that the rule sets, with `method.name`; those that a user named here prevail.

    Raises:
        SettingsError: the settings name a setting that the chosen method does not have.
    """
    values = settings.to_json()
    for key in ("model", "local"):
        values[key] = drop_unset(values[key])
    own = values.pop("method")["settings"]
    name = chosen["method"]["name"]
    for key in own:
        fit = methods_with(key)
        if name not in fit:
            advice = f"leave it out, or set method.name to one that has it: {', '.join(fit)}" if fit else "leave it out"
            raise SettingsError(f"method.{shown(key)}: method auto chose {name}, which has no such setting: {advice}")
    return merge(dict(chosen), {"method": own}, drop_unset(values))


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
            hint = did_you_mean(key, sorted({"name", *own}))
            raise ValueError(f"method.{shown(key)}: no method has such a setting{hint}")


def flatten(settings: Settings) -> dict[str, Any]:
    """Return settings as one level of `section.key: value`, for MLflow's parameters and tables."""
    return _flat("", settings.to_json())


def _flat(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(f"{path}.{key}" if path else key, inner)
    return flat


def load_settings(
    path: Path | None = None, overrides: Sequence[str] = (), changes: Mapping[str, Any] | None = None
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
    content: Any = {}
    if path is not None:
        content = read_yaml_file(path, "settings file", SettingsError, "base") or {}
    if not isinstance(content, dict):
        raise SettingsError(f"settings file {path} holds a {type(content).__name__}, expected keys and values")
    # Whatever their order: the name of another method drops the file's settings, and not those beside it.
    given = sorted(overrides, key=lambda text: not text.startswith(TAGS))
    return make_settings(merge(expand_names(content), *map(parse_override, given), dict(changes or {})))


def parse_override(override: str) -> dict[str, Any]:
    """Return one `key.path=value` as nested dictionaries of text; lists, mappings and quoted words are read as YAML.

    Raises:
        SettingsError: it is malformed.
    """
    where = f"--set {override[:80]!r}"
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"{where}: expected key.path=value, for example --set local.epochs=1")
    value: Any = text.strip()
    if value[:1] in ("[", "{", "'", '"'):
        value = read_yaml(text, where, SettingsError, "base")
    first, *steps = key.strip().split(".")
    for step in reversed(steps):
        value = {step: value}
    return expand_names({first: value})
