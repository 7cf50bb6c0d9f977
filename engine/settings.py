"""The one schema of a run: settings file, command line, Prefect form and MLflow parameters are all this model.

Methods, partitions and the rest describe their settings as frozen dataclasses; the pydantic models here are made from
those, so that each setting is written once. Nothing is read but what the caller passes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, Union

from pydantic import Field, ValidationError, model_validator

from core.errors import ShoalError, brief, shown
from core.setting import FileFormat
from data.augment import AugmentSettings
from data.partition.schemes import SCHEMES, Auto, settle
from data.prepare import kind_of
from engine.merge import merge
from engine.settings_sections import (
    CheckpointSection,
    ChooseSection,
    DataSection,
    EvaluateSection,
    ParticipationSection,
    PrivacySection,
    Section,
    TrackingSection,
    WorkersSection,
    model_section,
    section,
)
from engine.wrong_settings import Tagged, explain
from engine.yaml_text import read_yaml, read_yaml_file
from methods.base import LocalSettings, ModelSettings
from methods.context import AggregationSettings
from methods.registry import DEFAULT, METHODS

REPRESENTATIONS = "rotnet-"
"""How the name of a set of representations begins (`engine.represent`, whose imports take longer)."""


AUTO = "auto"
"""As `model.clusters`: the number is chosen before the run (`tasks.choosing`)."""
LATER = (
    ("participation", "dropout", 0.0),
    ("participation", "buffer", None),
    ("participation", "staleness", 0.5),
    ("participation", "slowness", 0.0),
    ("participation", "refusals", 3),
    ("participation", "longest", 100.0),
    ("participation", "largest", 1e12),
    ("participation", "max_memory_mb", 4096.0),
    ("method", "whitening", 1.0),
    ("method", "entropy_over", "client"),
    ("method", "evenness", 0.0),
    ("method", "softness", 0.05),
)
"""Settings that came after others were digested: section, key, and the value with which nothing changes."""
LATER_SECTIONS = ("aggregation", "privacy", "choose")
"""Whole sections that came later."""


class SettingsError(ShoalError):
    """A setting is unknown, of the wrong type, or out of bounds."""


METHOD_SECTIONS = {name: section(method.Settings, ("name", name)) for name, method in METHODS.items()}
PARTITIONS: dict[str, type] = {Auto.kind: Auto, **SCHEMES}
PARTITION_SECTIONS = {kind: section(scheme, ("kind", kind)) for kind, scheme in PARTITIONS.items()}
TAGGED = {
    "method": Tagged("name", DEFAULT, METHOD_SECTIONS),
    "partition": Tagged("kind", Auto.kind, PARTITION_SECTIONS),
}

SOURCES: dict[str, type] = {
    "model": ModelSettings,
    "local": LocalSettings,
    "augment": AugmentSettings,
    "aggregation": AggregationSettings,
}
"""The dataclass of each section that is the same for every method and scheme."""


if TYPE_CHECKING:
    # Made at run time: to a type checker a section of these is anything.
    MethodUnion: TypeAlias = Any
    PartitionUnion: TypeAlias = Any
    LocalSection: TypeAlias = Any
    ModelSection: TypeAlias = Any
    AugmentSection: TypeAlias = Any
    AggregationSection: TypeAlias = Any
else:
    LocalSection = section(LocalSettings, optional=True)
    ModelSection = model_section(ModelSettings)
    AugmentSection = section(AugmentSettings)
    AggregationSection = section(AggregationSettings)
    MethodUnion = Annotated[Union[tuple(METHOD_SECTIONS.values())], Field(discriminator="name")]  # noqa: UP007
    PartitionUnion = Annotated[Union[tuple(PARTITION_SECTIONS.values())], Field(discriminator="kind")]  # noqa: UP007


class Settings(Section):
    """Everything that decides what a run computes, and where it runs and is shown."""

    method: MethodUnion = Field(default_factory=METHOD_SECTIONS[DEFAULT])
    data: DataSection = DataSection()
    partition: PartitionUnion = Field(default_factory=PARTITION_SECTIONS[Auto.kind])
    model: ModelSection = ModelSection()
    choose: ChooseSection = ChooseSection()
    rounds: int = Field(10, ge=1, description="number of communication rounds")
    local: LocalSection = LocalSection()
    augment: AugmentSection = AugmentSection()
    participation: ParticipationSection = ParticipationSection()
    aggregation: AggregationSection = AggregationSection()
    privacy: PrivacySection = PrivacySection()
    evaluate: EvaluateSection = EvaluateSection()
    checkpoint: CheckpointSection = CheckpointSection()
    workers: WorkersSection = WorkersSection()
    tracking: TrackingSection = TrackingSection()
    seed: int = Field(0, ge=0, description="seed from which every random draw of the run follows")

    @model_validator(mode="before")
    @classmethod
    def _tags(cls, raw: Any) -> Any:
        # `method: fedcc` is short for `method: {name: fedcc}`; a section without its tag means the default one.
        if isinstance(raw, dict):
            raw = dict(raw)
            for key, tagged in TAGGED.items():
                value = raw.get(key)
                if isinstance(value, str):
                    raw[key] = {tagged.tag: value}
                elif isinstance(value, dict) and tagged.tag not in value:
                    raw[key] = {tagged.tag: tagged.default, **value}
            if isinstance(raw.get("partition"), dict) and raw["partition"].get("clients", 0) is None:
                # Left open in `auto`, and laid under another scheme by a study: that scheme's own number.
                raw["partition"] = {k: v for k, v in raw["partition"].items() if k != "clients"}
        return raw

    @model_validator(mode="after")
    def _defaults(self) -> Settings:
        method = METHODS[self.method.name]
        # Representations are vectors, whatever they are of.
        kind = "vector" if self.data.name.startswith(REPRESENTATIONS) else kind_of(self.data.name)
        local = method.local_defaults_for(self.dataclass("method"), kind)
        for key, defaults in (("local", local), ("model", method.model_defaults)):
            given = {k: v for k, v in getattr(self, key).model_dump().items() if v is not None}
            filled = type(getattr(self, key))(**{**dataclasses.asdict(defaults), **given})
            object.__setattr__(self, key, filled)
        return self

    def plain(self) -> dict[str, Any]:
        """As nested dictionaries of JSON values."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """sha256 of what decides the numbers: not where it ran, nor where it is shown."""
        decisive = {k: v for k, v in self.plain().items() if k not in ("tracking", "checkpoint")}
        # What came later counts only where it is used: the digests of runs from before stay as they are.
        for part, key, unused in LATER:
            if key in decisive[part] and decisive[part][key] == unused:
                del decisive[part][key]
        if not self.chooses_clusters:
            del decisive["choose"]  # nothing is chosen
        for part in LATER_SECTIONS:
            if part in decisive and decisive[part] == type(getattr(self, part))().model_dump(mode="json"):
                del decisive[part]
        # Clients in one computation, sums of groups and compiled networks agree with what is done one by one up to
        # rounding, not to the bit.
        workers = {
            "batched": self.workers.batched > 1,
            "summed": self.workers.summed > 1,
            "compile": self.workers.compile != "off",
            "deterministic": self.workers.deterministic,
        }
        named = ("precision", "device", *(name for name, used in workers.items() if used))
        decisive["workers"] = {k: decisive["workers"][k] for k in named}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def settled(self, own_clients: bool) -> Settings:
        """The same settings with the scheme of partitions that `partition.kind: auto` means for their data set.

        Args:
            own_clients: whether the data set names its clients.
        """
        if self.partition.kind != Auto.kind:
            return self
        scheme = settle(self.dataclass("partition"), own_clients)
        return make_settings({**self.plain(), "partition": {"kind": scheme.kind, **dataclasses.asdict(scheme)}})

    @property
    def chooses_clusters(self) -> bool:
        """Whether the number of clusters is still to be chosen."""
        return bool(self.model.clusters == AUTO)

    def with_clusters(self, clusters: int) -> Settings:
        """The same settings with this number of clusters, as if no other had been thought of."""
        plain = {key: value for key, value in self.plain().items() if key != "choose"}
        return make_settings({**plain, "model": {**plain["model"], "clusters": clusters}})

    def dataclass(self, key: str) -> Any:
        """A section as the frozen dataclass that the lower rooms work with (method, partition, model, local, ...).

        A number of clusters that is still to be chosen is there the largest that may be.
        """
        values = getattr(self, key).model_dump()
        if key == "model" and self.chooses_clusters:
            values["clusters"] = self.choose.most
        if key == "method":
            source = METHODS[values.pop("name")].Settings
        elif key == "partition":
            source = PARTITIONS[values.pop("kind")]
        else:
            source = SOURCES[key]
        return source(**values)


def flatten(settings: Settings) -> dict[str, Any]:
    """Settings as `section.key: value`, one level: for parameters of MLflow and tables."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    walk("", settings.plain())
    return flat


def make_settings(raw: dict[str, Any]) -> Settings:
    """Validate nested dictionaries.

    Raises:
        SettingsError: names each wrong setting's path, what was given and what is allowed.
    """
    try:
        return Settings(**raw)
    except ValidationError as error:
        raise SettingsError("\n".join(explain(raw, error.errors(), Settings, TAGGED))) from None


def load_settings(
    path: Path | None = None, overrides: Sequence[str] = (), changes: dict[str, Any] | None = None
) -> Settings:
    """Settings from a YAML file and `key.path=value` overrides, over the defaults.

    Overriding `method.name` or `partition.kind` with another value drops the file's other keys of that section: they
    belong to the method or scheme that is no longer meant.

    Args:
        path: the file.
        overrides: as the command line takes them.
        changes: nested dictionaries, laid over both.

    Raises:
        SettingsError: an unreadable file, a malformed override, or a wrong setting.
    """
    raw: dict[str, Any] = {}
    if path is not None:
        raw = read_yaml_file(path, "settings file", SettingsError)
        raw = {} if raw is None else raw
        if not isinstance(raw, dict):
            raise SettingsError(f"settings file {path} holds a {type(raw).__name__}, expected keys and values")
    for override in overrides:
        _apply(raw, override)
    raw = merge(raw, changes)
    _read_files(raw)
    return make_settings(raw)


def _read_files(raw: dict[str, Any]) -> None:
    """Put a file's content where its name is given for a setting that declares such a file."""
    for key in (*TAGGED, *SOURCES):
        given = raw.get(key)
        if not isinstance(given, dict) or (source := _source(key, given)) is None:
            continue
        for item in dataclasses.fields(source):
            file: FileFormat | None = item.metadata.get("file")
            if file is not None and isinstance(given.get(item.name), str):
                path = Path(given[item.name])
                try:
                    given[item.name] = file.parse(path.read_text(encoding="utf-8"))
                except (OSError, ValueError) as error:
                    raise SettingsError(
                        f"{key}.{item.name}: {file.name} {shown(path, 200)} cannot be read: {brief(error)}"
                    ) from None
                except ShoalError as error:
                    raise SettingsError(f"{key}.{item.name}: {file.name} {shown(path, 200)}: {error}") from None


def _source(key: str, given: dict[str, Any]) -> type | None:
    """The dataclass of a section of unchecked settings; None where its tag names none."""
    if key not in TAGGED:
        return SOURCES[key]
    name = str(given.get(TAGGED[key].tag, TAGGED[key].default))
    if key == "method":
        return METHODS[name].Settings if name in METHODS else None
    return PARTITIONS.get(name)


def nested(overrides: Sequence[str]) -> dict[str, Any]:
    """`key.path=value` overrides as nested dictionaries.

    Raises:
        SettingsError: a malformed override.
    """
    raw: dict[str, Any] = {}
    for override in overrides:
        _apply(raw, override)
    return raw


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"--set {override[:80]!r}: expected key.path=value, for example --set local.epochs=1")
    value = read_yaml(text, f"--set {override[:80]!r}", SettingsError)
    *path, last = key.strip().split(".")
    place = raw
    for step in path:
        inner = place.get(step)
        if isinstance(inner, str) and step in ("method", "partition"):
            inner = {"name" if step == "method" else "kind": inner}
        place[step] = inner if isinstance(inner, dict) else {}
        place = place[step]
    if (path, last) in ((["method"], "name"), (["partition"], "kind")) and place.get(last) != value:
        place.clear()
    place[last] = value
