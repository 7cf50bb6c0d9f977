"""Records: frozen dataclasses that are kept as JSON objects, and are read back strictly by their annotations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from shoal.core.errors import shown

Record = TypeVar("Record")

UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
"""Pydantic's words for an entry that a dataclass does not have."""

_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Makes the reader of a dataclass, once."""


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
        kind: the dataclass. Its fields are str, int, float, bool, Any, tuple[X, ...], Mapping of text or
            whole numbers to X, records of the same sort, a Literal, or one of these or None.
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
    shoal.core.records.BadRecord: entry x: input should be a valid number
    """
    try:
        record: Record = _adapter(kind).validate_json(json.dumps(json_value), strict=True, extra="forbid")
    except ValidationError as error:
        raise BadRecord(_sentence(error.errors()[0])) from None
    return record


def _json_value(value: Any) -> Any:
    if is_dataclass(value):
        return record_to_json(value)
    if isinstance(value, tuple):
        return [_json_value(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _json_value(each) for key, each in value.items()}
    return value


def _sentence(error: Any) -> str:
    entry = f"entry {'.'.join(shown(step) for step in error['loc'])}" if error["loc"] else "it"
    if error["type"] == "missing":
        return f"{entry} is missing"
    if error["type"] in UNKNOWN:
        return f"{entry} is unknown"
    return f"{entry}: {error['msg'][0].lower()}{error['msg'][1:]}"
