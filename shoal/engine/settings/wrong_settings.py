"""Sentences about wrong settings: the path of the setting, its value, and what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

from shoal.core.errors import shown
from shoal.engine.settings.addresses import masked
from shoal.methods.registry import ADDED

MAX_SENTENCES = 20
"""Most sentences to show."""
MAX_VALUE_CHARACTERS = 120
"""Most characters of a wrong value to show."""
UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
"""Pydantic's words for a key that a dataclass, or a model, does not have."""
NOT_A_SECTION = ("dataclass_type", "model_type", "model_attributes_type")
"""Its words for a value in place of a section."""


class Tagged(NamedTuple):
    """A section that is one of several: the key that names it, the default name, and all sections by name."""

    tag: str
    default: str
    sections: Mapping[str, type]

    def chosen(self, values: Any) -> type | None:
        """Return the section that the tag of unchecked values names; None for an unknown name."""
        if not isinstance(values, Mapping):
            return None
        return self.sections.get(str(values.get(self.tag, self.default)))


def explain(
    raw: Mapping[str, Any], errors: Sequence[Any], root: type, tagged: Mapping[str, Tagged] | None = None
) -> list[str]:
    """Return pydantic's validation errors as sentences, one for each wrong setting.

    Args:
        raw: the settings that were validated.
        errors: from `ValidationError.errors()`.
        root: the dataclass or model of all settings.
        tagged: its sections that are one of several, by key.
    """
    by_path: dict[tuple[str, ...], list[Any]] = {}
    for item in errors:
        by_path.setdefault(_path(raw, item), []).append(item)
    sentences = [_sentence(raw, list(path), items, root, tagged or {}) for path, items in by_path.items()]
    if len(sentences) > MAX_SENTENCES:
        return [*sentences[:MAX_SENTENCES], f"and {len(sentences) - MAX_SENTENCES} more"]
    return sentences


def _path(raw: Any, item: Any) -> tuple[str, ...]:
    """Return the keys of an error's place that the settings have: pydantic adds names of types among them."""
    path = []
    for step in item["loc"]:
        if isinstance(raw, Mapping) and step in raw:
            raw = raw[step]
        elif not (isinstance(raw, Sequence) and isinstance(step, int) and step < len(raw)):
            continue
        path.append(str(step))
    if item["type"] == "missing":
        path.append(str(item["loc"][-1]))
    return tuple(path)


def _sentence(
    raw: Mapping[str, Any], steps: list[str], items: list[Any], root: type, tagged: Mapping[str, Tagged]
) -> str:
    """Return the sentence about one setting; a type that is a number or a word gives an error for each."""
    path = ".".join(map(shown, steps)) or "settings"
    item = items[0]
    kind = item["type"]
    names = list(fields_at(raw, steps[:-1] if kind in UNKNOWN else steps, root, tagged))
    given = masked(format_value(item.get("input")))
    if kind in UNKNOWN:
        return f"{path}: there is no such setting{did_you_mean(steps[-1], names)} (known here: {', '.join(names)})"
    if kind == "union_tag_invalid":
        return _unknown_tag(path, str(item["ctx"]["tag"]), tagged[path])
    if words := _words(items, fields_at(raw, steps[:-1], root, tagged).get(steps[-1] if steps else "", {})):
        if kind in ("literal_error", "string_pattern_mismatch"):
            return unknown_name(path, item["input"], words)
        if kind == "int_parsing":
            return f"{path}: given {given}; expected a whole number or {', '.join(words)}"
    if kind in NOT_A_SECTION and names:
        return f"{path}: given {given}; expected its settings, such as {path}.{names[0]}=..."
    if kind == "value_error":
        message = str(item["ctx"]["error"])
        return message if message.startswith(path) or not steps else f"{path}: {message}"
    return f"{path}: given {given}; {item['msg'][0].lower()}{item['msg'][1:]}"


def _unknown_tag(path: str, name: str, tagged: Tagged) -> str:
    """Return the sentence about an unknown method or scheme."""
    sentence = unknown_name(f"{path}.{tagged.tag}", name, sorted(tagged.sections))
    if path != "method":
        return sentence
    return f"{sentence}; {ADDED.broken.get(name, 'a method of another package needs that package here')}"


def _words(items: list[Any], metadata: Mapping[str, Any]) -> list[str]:
    """Return the names that are allowed: those of a literal, from pydantic's message, or of a registry."""
    words = list(metadata.get("choices", ())) if items[0]["type"] == "string_pattern_mismatch" else []
    for item in items:
        if item["type"] == "literal_error":
            words += re.findall(r"'([^']*)'", item["ctx"]["expected"])
    return words


def fields_at(
    raw: Mapping[str, Any], steps: Sequence[str], root: type, tagged: Mapping[str, Tagged]
) -> dict[str, Mapping[str, Any]]:
    """Return the settings of a section with their metadata; if it is one of several, `raw` says which."""
    kind: Any = root
    for number, step in enumerate(steps):
        if number == 0 and step in tagged:
            kind = tagged[step].chosen(raw.get(step)) or tagged[step].sections[tagged[step].default]
        else:
            kind = get_type_hints(kind).get(step) if isinstance(kind, type) else None
    if dataclasses.is_dataclass(kind):
        return {item.name: item.metadata for item in dataclasses.fields(kind)}
    return {name: {} for name in getattr(kind, "model_fields", ())}


def format_value(value: object) -> str:
    """Return the value of a setting for a sentence, cut if it is long."""
    text = repr(value)
    if len(text) <= MAX_VALUE_CHARACTERS and text.isprintable():
        return text
    return f"{ascii(value)[:MAX_VALUE_CHARACTERS]}..."


def unknown_name(path: str, value: object, allowed: Sequence[str]) -> str:
    """Return the sentence about an unknown name, with the nearest of the allowed names."""
    hint = did_you_mean(str(value).lower(), allowed)
    return f"{path}: {format_value(value)} is not known{hint} (expected one of {', '.join(allowed)})"


def did_you_mean(name: str, allowed: Sequence[str]) -> str:
    """Return the nearest of the allowed names as the end of a sentence; empty if none is near."""
    nearest = difflib.get_close_matches(name, allowed, 1)
    return f"; did you mean {nearest[0]}?" if nearest else ""
