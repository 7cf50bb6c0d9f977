"""Sentences about wrong settings: the path of the setting, its value, and what is allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from shoal.core.errors import shown
from shoal.engine.settings.addresses import masked
from shoal.methods.registry import ADDED

MAX_SENTENCES = 20
"""Most sentences to show."""
MAX_VALUE_CHARACTERS = 120
"""Most characters of a wrong value to show."""
NAME_FORM = "name_form"
"""The type of pydantic's error about a name of none of the allowed forms (`shoal.core.setting.NameForms`)."""


class Tagged(NamedTuple):
    """A section that is one of several: the key that names it, the default name, and all sections by name."""

    tag: str
    default: str
    sections: Mapping[str, type[BaseModel]]


def explain(
    raw: dict[str, Any], errors: Sequence[Any], root: type[BaseModel], tagged: Mapping[str, Tagged]
) -> list[str]:
    """Return pydantic's validation errors as sentences, one for each wrong setting.

    Args:
        raw: the settings that were validated.
        errors: from `ValidationError.errors()`.
        root: the model of all settings.
        tagged: its sections that are one of several, by key.
    """
    names = {name for each in tagged.values() for name in each.sections}
    sentences: dict[str, str] = {}
    numbers_or_names: dict[str, list[Any]] = {}
    for item in errors:
        steps = [str(step) for i, step in enumerate(item["loc"]) if not (i == 1 and step in names)]
        if len(steps) > 1 and (steps[-1] == "int" or steps[-1].startswith("literal[") or item["type"] == NAME_FORM):
            # A number or a name: pydantic has an error for each of them.
            numbers_or_names.setdefault(".".join(map(shown, steps[:-1])), []).append(item)
            continue
        path = ".".join(map(shown, steps)) or "settings"
        sentences[path] = _sentence(raw, item, steps, path, root, tagged)
    for path, items in numbers_or_names.items():
        words = [word for item in items if item["type"] == "literal_error" for word in _words(item)]
        if forms := [item["ctx"]["words"] for item in items if item["type"] == NAME_FORM]:
            sentences[path] = unknown_name(path, items[0]["input"], [*words, *forms])
            continue
        sentences[path] = (
            f"{path}: given {format_value(items[0]['input'])}; expected a whole number or {', '.join(words)}"
        )
    found = list(sentences.values())
    if len(found) > MAX_SENTENCES:
        return [*found[:MAX_SENTENCES], f"and {len(found) - MAX_SENTENCES} more"]
    return found


def _sentence(
    raw: dict[str, Any],
    item: Any,
    steps: list[str],
    path: str,
    root: type[BaseModel],
    tagged: Mapping[str, Tagged],
) -> str:
    if item["type"] == "extra_forbidden":
        names_here = known_keys(raw, steps[:-1], root, tagged)
        hint = did_you_mean(steps[-1], names_here)
        return f"{path}: there is no such setting{hint} (known here: {', '.join(names_here)})"
    if item["type"] == "union_tag_invalid":
        section = tagged[path]
        sentence = unknown_name(f"{path}.{section.tag}", item["ctx"]["tag"], sorted(section.sections))
        if path == "method":
            reason = ADDED.broken.get(str(item["ctx"]["tag"]), "a method of another package needs that package here")
            return f"{sentence}; {reason}"
        return sentence
    if item["type"] == "literal_error":
        return unknown_name(path, item["input"], _words(item))
    if item["type"] == "model_type" and (names_here := known_keys(raw, steps, root, tagged)):
        value = format_value(item.get("input"))
        return f"{path}: given {value}; expected its settings, such as {path}.{names_here[0]}=..."
    if item["type"] == "value_error":
        message = str(item["ctx"]["error"])
        return message if message.startswith(path) or not steps else f"{path}: {message}"
    value = masked(format_value(item.get("input")))
    return f"{path}: given {value}; {item['msg'][0].lower()}{item['msg'][1:]}"


def format_value(value: object) -> str:
    """Return the value of a setting for a sentence, cut if it is long."""
    text = repr(value)
    if len(text) <= MAX_VALUE_CHARACTERS and text.isprintable():
        return text
    return f"{ascii(value)[:MAX_VALUE_CHARACTERS]}..."


def _words(item: Any) -> list[str]:
    """Return the names that a literal allows, from pydantic's message."""
    return re.findall(r"'([^']*)'", item["ctx"]["expected"])


def unknown_name(path: str, value: object, allowed: Sequence[str]) -> str:
    """Return the sentence about an unknown name, with the nearest of the allowed names."""
    hint = did_you_mean(str(value).lower(), allowed)
    return f"{path}: {format_value(value)} is not known{hint} (expected one of {', '.join(allowed)})"


def did_you_mean(name: str, allowed: Sequence[str]) -> str:
    """Return the nearest of the allowed names as the end of a sentence; empty if none is near."""
    nearest = difflib.get_close_matches(name, allowed, 1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def known_keys(raw: dict[str, Any], steps: list[str], root: type[BaseModel], tagged: Mapping[str, Tagged]) -> list[str]:
    """Return the keys of one section; if it is one of several, `raw` says which."""
    if not steps:
        return list(root.model_fields)
    value = raw.get(steps[0])
    if steps[0] in tagged:
        tag, default, sections = tagged[steps[0]]
        name = value
        if isinstance(value, Mapping):
            name = value.get(tag, default)
        if name not in sections:
            name = default
        return list(sections[str(name)].model_fields)
    model: Any = root
    for step in steps:
        field = getattr(model, "model_fields", {}).get(step)
        model = getattr(field, "annotation", None)
    return list(getattr(model, "model_fields", {}))
