"""Records: frozen dataclasses that are kept as JSON objects, and are read back strictly by their annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from shoal.core.errors import shown

Record = TypeVar("Record")

KINDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "named entries",
    NoneType: "null",
}
"""What an error calls the types of JSON."""


class BadRecord(ValueError):
    """A JSON value is not the record that was expected; the message names the entry and what it should be."""


def record_to_json(record: object) -> dict[str, Any]:
    """Return a record as a JSON object. An optional entry that is None is left out.

    Args:
        record: an instance of a dataclass of JSON types, tuples, mappings and further records.
    """
    entries = {}
    for field in fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        if value is None and field.default is None:
            continue
        entries[field.name] = _json_value(value)
    return entries


def record_from_json(kind: type[Record], json_value: Any) -> Record:
    """Return the record that a JSON object holds.

    Args:
        kind: the dataclass. Its fields are str, int, float, bool, Any, tuple[X, ...], Mapping of text or whole numbers
            to X, records of the same sort, a Literal, or one of these or None.
        json_value: the JSON value.

    Raises:
        BadRecord: an entry is missing, is unknown, or has another type.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     x: float
    ...     label: str | None = None
    >>> record_from_json(Point, {"x": 1.5})
    Point(x=1.5, label=None)
    >>> record_from_json(Point, {"x": "1.5"})
    Traceback (most recent call last):
    ...
    shoal.core.records.BadRecord: entry x is text, expected a number
    """
    record: Record = _record(kind, json_value, "")
    return record


def _json_value(value: Any) -> Any:
    if is_dataclass(value):
        return record_to_json(value)
    if isinstance(value, tuple):
        return [_json_value(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _json_value(each) for key, each in value.items()}
    return value


@cache
def _entries(kind: type) -> dict[str, tuple[Any, Field[Any]]]:
    """Return the type and the field of each entry of a dataclass, by name."""
    hints = get_type_hints(kind)
    return {field.name: (hints[field.name], field) for field in fields(kind)}


def _record(kind: Any, json_value: Any, where: str) -> Any:
    if not isinstance(json_value, dict):
        raise _wrong(where, json_value, "named entries")
    entries = _entries(kind)
    for name in json_value:
        if name not in entries:
            raise BadRecord(f"entry {where}{shown(name)} is unknown")
    values = {}
    for name, (expected, field) in entries.items():
        if name in json_value:
            values[name] = _value(expected, json_value[name], where + name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise BadRecord(f"entry {where}{name} is missing")
    return kind(**values)


def _value(expected: Any, value: Any, where: str) -> Any:
    """Return a value as its annotation has it."""
    if get_origin(expected) in (Union, UnionType):
        if value is None:
            return None
        (expected,) = (option for option in get_args(expected) if option is not NoneType)
    if get_origin(expected) is not None:
        return _container(get_origin(expected), get_args(expected), value, where)
    if is_dataclass(expected):
        return _record(expected, value, f"{where}.")
    if expected is Any or type(value) is expected or (expected is float and type(value) is int):
        return value
    raise _wrong(where, value, KINDS[expected])


def _container(origin: Any, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    """Return a value whose annotation has arguments: a tuple, a mapping or a Literal."""
    if origin is Literal:
        if value not in arguments:
            raise BadRecord(f"entry {where} is {shown(value)}, expected {' or '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        return tuple(_value(arguments[0], each, f"{where}[{place}]") for place, each in enumerate(value))
    if not isinstance(value, dict):
        raise _wrong(where, value, "named entries")
    return {
        _key(arguments[0], name, where): _value(arguments[1], each, f"{where}.{shown(name)}")
        for name, each in value.items()
    }


def _key(expected: Any, name: str, where: str) -> Any:
    """Return the key of an entry as the annotation of its mapping has it: JSON has text alone."""
    if expected is not int:
        return name
    if not (name.isascii() and name.isdecimal()):
        raise BadRecord(f"entry {where} has the key {shown(name)}, expected a whole number")
    return int(name)


def _wrong(where: str, value: Any, expected: str) -> BadRecord:
    subject = "it"
    if where:
        subject = f"entry {where.rstrip('.')}"
    return BadRecord(f"{subject} is {KINDS.get(type(value), type(value).__name__)}, expected {expected}")
