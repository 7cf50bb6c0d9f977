"""Read values of YAML and of `--set` by the type of their setting: `on` is a word if the setting is a choice of words.

YAML alone reads on, no, 2024 and 007 as true, false and numbers. A setting that is text, or one of a few words, gets
the text as it is written; a number or a switch gets YAML's value.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from shoal.core.errors import ShoalError
from shoal.engine.settings.wrong_settings import Tagged
from shoal.engine.settings.yaml_text import Unquoted, read_yaml

NULL = ("~", "null", "Null", "NULL")
_KINDS: dict[str, tuple[Any, ...]] = {
    "null": (type(None),),
    "bool": (bool,),
    "int": (int, float),
    "float": (float,),
}


@dataclass(frozen=True)
class Argument:
    """The text after the equals sign of `--set`, to be read when the type of its setting is known.

    Attributes:
        text: as it was written.
        where: name of the text in errors.
    """

    text: str
    where: str


def convert(raw_value: Any, hint: Any, path: str, error: type[ShoalError]) -> Any:
    """Return a tree with each `Unquoted` and `Argument` converted to the type of its place.

    Args:
        raw_value: a tree of dictionaries, lists and values from `read_yaml(keep_text=True)`.
        hint: the type: of a value, a collection, or a pydantic model, whose fields have types of their own.
        path: name of the value in errors.
        error: class of the error about an ambiguous value.

    >>> convert({"a": Unquoted("on", "bool", True)}, dict[str, Literal["on", "off"]], "", ShoalError)
    {'a': 'on'}
    >>> convert(Argument("007", "--set"), str, "", ShoalError), convert(Argument("7", "--set"), int, "", ShoalError)
    ('007', 7)
    """
    leaves = alternatives(hint)
    if isinstance(raw_value, Argument):
        raw_value = _read_argument(raw_value, leaves, error)
    if isinstance(raw_value, Unquoted):
        return _value_of_unquoted(raw_value, leaves, path, error)
    if isinstance(raw_value, str):
        if type(None) in leaves and raw_value.lower() == "none" and "none" not in words_of(leaves):
            return None
        return raw_value
    if isinstance(raw_value, dict):
        prefix = path and f"{path}."
        hints = {key: (type_of_key(hint, key), f"{prefix}{key}") for key in raw_value}
        return _convert_each(raw_value, hints, error)
    if isinstance(raw_value, list):
        inner = _hint_of_items(leaves)
        return [convert(value, inner, f"{path}.{number}", error) for number, value in enumerate(raw_value)]
    return raw_value


def convert_settings(
    raw: dict[str, Any], root: type[BaseModel], tagged: Mapping[str, Tagged], error: type[ShoalError]
) -> dict[str, Any]:
    """Return nested settings with values of the right types; see `convert`.

    Args:
        raw: unchecked settings; in a section without its tag a key may belong to any of the sections.
        root: the model of all settings.
        tagged: its sections that are one of several, by key.
        error: class of the error about an ambiguous value.
    """
    hints: dict[str, tuple[Any, str]] = {}
    for key, raw_value in raw.items():
        hint: Any = str  # a name alone
        if key not in tagged or isinstance(raw_value, dict):
            hint = type_of_setting(key, raw, root, tagged)
        hints[key] = (hint, key)
    return _convert_each(raw, hints, error)


def _convert_each(
    values: dict[str, Any], hints: Mapping[str, tuple[Any, str]], error: type[ShoalError]
) -> dict[str, Any]:
    """Convert the values of a mapping; the error has a line for each value that is ambiguous.

    Args:
        values: by key.
        hints: the type of each, and its name in errors.
        error: class of the error.
    """
    found: dict[str, Any] = {}
    problems = []
    for key, value in values.items():
        hint, path = hints[key]
        try:
            found[key] = convert(value, hint, path, error)
        except error as problem:
            problems.append(str(problem))
    if problems:
        raise error("\n".join(problems))
    return found


def drop_ambiguous(raw_value: Any) -> Any:
    """Return a tree without its ambiguous values, so that the others can be checked too."""
    if isinstance(raw_value, dict):
        return {key: drop_ambiguous(value) for key, value in raw_value.items() if not _ambiguous(value)}
    if isinstance(raw_value, list):
        return [drop_ambiguous(value) for value in raw_value if not _ambiguous(value)]
    return raw_value


def _ambiguous(raw_value: Any) -> bool:
    return isinstance(raw_value, Unquoted) and bool(raw_value.problem)


def type_of_setting(path: str, raw: dict[str, Any], root: type[BaseModel], tagged: Mapping[str, Tagged]) -> Any:
    """Return the type of the setting with a dotted key; `Any` for an unknown setting.

    Args:
        path: such as local.lr.
        raw, root, tagged: see `convert_settings`.
    """
    first, *steps = path.split(".")
    hint = type_of_key(root, first)
    if first in tagged:
        sections = tagged[first].sections
        name = raw.get(first)
        if isinstance(name, dict):
            name = name.get(tagged[first].tag)
        if isinstance(name, Argument | Unquoted):
            name = name.text
        hint = _any_of(list(sections.values()))
        if isinstance(name, str) and name in sections:
            hint = sections[name]
    for step in steps:
        hint = type_of_key(hint, step)
    return hint


def alternatives(hint: Any) -> list[Any]:
    """Return the members of a union, or the type itself, without annotations.

    >>> alternatives(Annotated[int | Literal["auto"], "slots"])
    [<class 'int'>, typing.Literal['auto']]
    """
    origin = get_origin(hint)
    if origin is Annotated:
        return alternatives(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return [leaf for each in get_args(hint) for leaf in alternatives(each)]
    return [hint]


def words_of(leaves: list[Any]) -> list[str]:
    """Return the words of all literals among types."""
    return [word for leaf in leaves if get_origin(leaf) is Literal for word in get_args(leaf) if isinstance(word, str)]


def _read_argument(raw_value: Argument, leaves: list[Any], error: type[ShoalError]) -> Any:
    text = raw_value.text.strip()
    only_text = all(leaf in (str, type(None)) for leaf in leaves)
    if only_text and text[:1] not in ("'", '"'):
        if not text or (text in NULL and type(None) in leaves):
            return None
        return text
    return read_yaml(raw_value.text, raw_value.where, error, keep_text=True)


def _value_of_unquoted(raw_value: Unquoted, leaves: list[Any], path: str, error: type[ShoalError]) -> Any:
    words = words_of(leaves)
    if raw_value.text in words:
        return raw_value.text
    if raw_value.kind == "bool" and bool not in leaves and {"on", "off"} <= set(words):
        return "on" if raw_value.value else "off"
    if not (Any in leaves or any(kind in leaves for kind in _KINDS[raw_value.kind])):
        textual = all(leaf in (str, type(None)) or get_origin(leaf) is Literal for leaf in leaves)
        if raw_value.text and (textual or raw_value.kind == "bool"):  # yes is not a number: pydantic would read it as 1
            return raw_value.text
    if raw_value.problem:
        raise error(f"{path}, {raw_value.problem}")
    return raw_value.value


def type_of_key(hint: Any, key: str) -> Any:
    """Return the type of the value of a key in a model or mapping; `Any` if it is unknown."""
    hints = []
    for leaf in alternatives(hint):
        if isinstance(leaf, type) and issubclass(leaf, BaseModel):
            if key in leaf.model_fields:
                hints.append(leaf.model_fields[key].annotation)
        elif get_origin(leaf) is dict:
            hints.append(get_args(leaf)[1])
    return _any_of(hints)


def _hint_of_items(leaves: list[Any]) -> Any:
    hints = [each for leaf in leaves if get_origin(leaf) in (list, tuple) for each in get_args(leaf) if each is not ...]
    return _any_of(hints)


def _any_of(hints: list[Any]) -> Any:
    return Union[tuple(hints)] if hints else Any  # noqa: UP007 (the hints are values)


def map_settings(part: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a tree with `change` applied to each mapping under a key `settings`, at any depth."""
    if isinstance(part, list):
        return [map_settings(each, change) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: change(each) if key == "settings" and isinstance(each, dict) else map_settings(each, change)
        for key, each in part.items()
    }
