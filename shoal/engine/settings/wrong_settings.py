"""What is wrong with settings, in sentences: the path of the setting, what was given, what is allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from shoal.core.errors import shown
from shoal.engine.settings.addresses import masked

MAX_SENTENCES = 20
"""Sentences that are shown."""
MAX_VALUE_CHARACTERS = 120
"""Characters of a wrong value that are shown."""


class Tagged(NamedTuple):
    """A section that is one of several: the key that names which, the one meant without it, and all of them."""

    tag: str
    default: str
    sections: Mapping[str, type[BaseModel]]


def explain(
    raw: dict[str, Any], errors: Sequence[Any], root: type[BaseModel], tagged: Mapping[str, Tagged]
) -> list[str]:
    """Pydantic's validation errors as sentences, one for each wrong setting.

    Args:
        raw: what was validated.
        errors: as `ValidationError.errors()` gives them.
        root: the model of all settings.
        tagged: its sections that are one of several, by key.
    """
    names = {name for each in tagged.values() for name in each.sections}
    sentences: dict[str, str] = {}
    numbers_or_names: dict[str, list[Any]] = {}
    for item in errors:
        steps = [str(step) for i, step in enumerate(item["loc"]) if not (i == 1 and step in names)]
        if len(steps) > 1 and (steps[-1] == "int" or steps[-1].startswith("literal[")):
            # A number or a name: pydantic tells what is wrong with each reading.
            numbers_or_names.setdefault(".".join(map(shown, steps[:-1])), []).append(item)
            continue
        path = ".".join(map(shown, steps)) or "settings"
        sentences[path] = _sentence(raw, item, steps, path, root, tagged)
    for path, items in numbers_or_names.items():
        words = [word for item in items if item["type"] == "literal_error" for word in _words(item)]
        sentences[path] = f"{path}: given {given_as(items[0]['input'])}; expected a whole number or {', '.join(words)}"
    found = list(sentences.values())
    return [*found[:MAX_SENTENCES], f"and {len(found) - MAX_SENTENCES} more"] if len(found) > MAX_SENTENCES else found


def _sentence(
    raw: dict[str, Any],
    item: Any,
    steps: list[str],
    path: str,
    root: type[BaseModel],
    tagged: Mapping[str, Tagged],
) -> str:
    if item["type"] == "extra_forbidden":
        known = known_keys(raw, steps[:-1], root, tagged)
        near = difflib.get_close_matches(steps[-1], known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{path}: there is no such setting{hint} (known here: {', '.join(known)})"
    if item["type"] == "union_tag_invalid":
        section = tagged[path]
        return unknown_name(f"{path}.{section.tag}", item["ctx"]["tag"], sorted(section.sections))
    if item["type"] == "literal_error":
        return unknown_name(path, item["input"], _words(item))
    if item["type"] == "model_type" and (known := known_keys(raw, steps, root, tagged)):
        return f"{path}: given {given_as(item.get('input'))}; expected its settings, such as {path}.{known[0]}=..."
    given = masked(given_as(item.get("input")))
    return f"{path}: given {given}; {item['msg'][0].lower()}{item['msg'][1:]}"


def given_as(given: object) -> str:
    """What was given, cut where it is long."""
    text = repr(given)
    return (
        text
        if len(text) <= MAX_VALUE_CHARACTERS and text.isprintable()
        else f"{ascii(given)[:MAX_VALUE_CHARACTERS]}..."
    )


def _words(item: Any) -> list[str]:
    """The names that a literal may be, from pydantic's list of them."""
    return re.findall(r"'([^']*)'", item["ctx"]["expected"])


def unknown_name(path: str, given: object, allowed: Sequence[str]) -> str:
    """The sentence on a name that is none of those allowed, with the nearest of them."""
    near = difflib.get_close_matches(str(given).lower(), allowed, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{path}: {given_as(given)} is not known{hint} (expected one of {', '.join(allowed)})"


def known_keys(raw: dict[str, Any], steps: list[str], root: type[BaseModel], tagged: Mapping[str, Tagged]) -> list[str]:
    """The settings that exist in one section, given the section's tag in `raw`."""
    if not steps:
        return list(root.model_fields)
    given = raw.get(steps[0])
    if steps[0] in tagged:
        tag, default, sections = tagged[steps[0]]
        chosen = given.get(tag, default) if isinstance(given, Mapping) else given
        return list(sections[str(chosen) if chosen in sections else default].model_fields)
    model: Any = root
    for step in steps:
        field = getattr(model, "model_fields", {}).get(step)
        model = field.annotation if field is not None else None
    return list(getattr(model, "model_fields", {}))
