"""Sentences about wrong settings: the path of the setting, its value, and what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from shoal.core.errors import shown
from shoal.engine.settings.addresses import masked
from shoal.methods.registry import ADDED

MAX_SENTENCES = 20
"""Most sentences to show."""
LEAST_ALIKE = 0.55
"""Share of its letters that a name has in common with the one that is proposed (`difflib`)."""
MAX_VALUE_CHARACTERS = 120
"""Most characters of a wrong value to show."""
UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
"""Pydantic's words for a key that a dataclass, or a model, does not have."""
QUOTED = r"'([^']*)'"
"""How its messages show names."""


class TaggedSection(NamedTuple):
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
    raw: Mapping[str, Any], errors: Sequence[Any], root: type, tagged: Mapping[str, TaggedSection] | None = None
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
    sentences = [
        _sentence(path, items, _allowed(raw, path, items, root, tagged or {})) for path, items in by_path.items()
    ]
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
    if item["type"] == "union_tag_invalid":
        path.append(item["ctx"]["discriminator"].strip("'"))
    return tuple(path)


def _allowed(
    raw: Mapping[str, Any], path: tuple[str, ...], items: list[Any], root: type, tagged: Mapping[str, TaggedSection]
) -> list[str]:
    """Return the names of which a wrong one may be meant: of settings, of sections, or those of a setting."""
    item = items[0]
    match item["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            return list(fields_at(raw, path[:-1], root, tagged))
        case "union_tag_invalid":
            return sorted(re.findall(QUOTED, item["ctx"]["expected_tags"]))
        case "literal_error":
            return re.findall(QUOTED, item["ctx"]["expected"])
        case "string_pattern_mismatch":
            return list(fields_at(raw, path[:-1], root, tagged).get(path[-1], {}).get("choices", ()))
        case _:
            return []


def _sentence(path: tuple[str, ...], items: list[Any], allowed: list[str]) -> str:
    """Return the sentence about one setting; a type that is a number or a word gives an error for each."""
    where = ".".join(map(shown, path)) or "settings"
    item = items[0]
    if item["type"] in UNKNOWN:
        return f"{where}: there is no such setting{did_you_mean(path[-1], allowed)} (known here: {', '.join(allowed)})"
    if allowed:
        value = item["ctx"].get("tag", item["input"])
        sentence = unknown_name(where, value, allowed)
        if where != "method.name":
            return sentence
        return f"{sentence}; {ADDED.broken.get(value, 'a method of another package needs that package here')}"
    if item["type"] == "value_error":
        message = str(item["ctx"]["error"])
        return message if message.startswith(where) or not path else f"{where}: {message}"
    messages = ", or ".join(f"{one['msg'][0].lower()}{one['msg'][1:]}" for one in items)
    return f"{where}: given {masked(format_value(item.get('input')))}; {messages}"


def fields_at(
    raw: Mapping[str, Any], steps: Sequence[str], root: type, tagged: Mapping[str, TaggedSection]
) -> dict[str, Mapping[str, Any]]:
    """Return the settings of a section with their metadata; if it is one of several, `raw` says which."""
    kind: Any = root
    for step in steps:
        if step in tagged:
            kind = tagged[step].chosen(raw[step])
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
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
    nearest = difflib.get_close_matches(name, allowed, 1, LEAST_ALIKE)
    return f"; did you mean {nearest[0]}?" if nearest else ""
