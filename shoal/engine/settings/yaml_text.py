"""YAML from outside, read within bounds: plain values and text keys, and no more of them than a person writes.

PyYAML's safe loader runs no code. But aliases of aliases can stand for billions of values, a date becomes an object,
`1: x` has a key that is not text, and the last of two equal keys wins. This loader refuses each of these with one
sentence that names the line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode
from yaml.reader import ReaderError

from shoal.core.errors import ShoalError

MAX_BYTES = 500_000
"""Most bytes of a file: the loader takes seconds for these."""
MAX_VALUES = 100_000
"""Most values of a file; an alias counts with all the values that it stands for."""
MAX_DEPTH = 50
"""Most levels of nesting."""
_TEXT, _MERGE, _TIME = (f"tag:yaml.org,2002:{name}" for name in ("str", "merge", "timestamp"))
_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")
_NOT_TEXT = {f"tag:yaml.org,2002:{name}": name for name in ("null", "bool", "int", "float")}
_MAX_INTEGER = 2**63


@dataclass(frozen=True)
class Unquoted:
    """A value without quotes that YAML does not read as text.

    Attributes:
        text: as it stands in the file, such as on, 007 or 2024.
        kind: its type in YAML: null, bool, int or float.
        value: the value of that type.
        problem: why the value must not be used, as a sentence; empty if it may.
    """

    text: str
    kind: str
    value: bool | int | float | None
    problem: str = ""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with bounds; dates stay text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._values = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._sizes:
                raise ComposerError(None, None, "an alias is part of the value that it stands for", mark)
            self._values += self._sizes[id(node)]
        else:
            before = self._values
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise ComposerError(None, None, f"nested more than {MAX_DEPTH} levels deep", mark)
            node = super().compose_node(parent, index)
            self._depth -= 1
            self._values += 1
            self._sizes[id(node)] = self._values - before
        if self._values > MAX_VALUES:
            raise ComposerError(None, None, f"more than {MAX_VALUES:,} values, with those that aliases stand for", mark)
        return node

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key, _ in node.value if isinstance(node, MappingNode) else ():
            if key.tag == _MERGE:
                continue
            if key.tag != _TEXT:
                shown = f"that is a {key.id}"
                if isinstance(key, ScalarNode):
                    shown = repr(key.value[:40])
                raise ConstructorError(None, None, f"the key {shown} is not text: put it in quotes", key.start_mark)
            if key.value in keys:
                raise ConstructorError(None, None, f"the key {key.value[:40]!r} occurs twice here", key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)

    def _number(self, node: ScalarNode, make: Any) -> int | float:
        try:
            value: int | float = make(self, node)
        except (ValueError, OverflowError):
            raise ConstructorError(None, None, f"{node.value[:40]!r} is not a number", node.start_mark) from None
        if isinstance(value, int) and abs(value) >= _MAX_INTEGER:
            raise ConstructorError(None, None, "a whole number of more than 64 bits", node.start_mark)
        return value

    def construct_yaml_int(self, node: ScalarNode) -> Any:
        return self._number(node, yaml.SafeLoader.construct_yaml_int)

    def construct_yaml_float(self, node: ScalarNode) -> Any:
        return self._number(node, yaml.SafeLoader.construct_yaml_float)


class _TextLoader(_Loader):
    """A loader that keeps the text of values without quotes as `Unquoted`."""

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        if not isinstance(node, ScalarNode) or node.style is not None or node.tag not in _NOT_TEXT:
            return super().construct_object(node, deep)
        kind = _NOT_TEXT[node.tag]
        try:
            value = super().construct_object(node, deep)
        except ConstructorError as wrong:
            return Unquoted(node.value, kind, None, f"{_place(node.start_mark)}: {wrong.problem}")
        problem = ""
        if kind in ("int", "float"):
            problem = _ambiguity(node.value, value)
        return Unquoted(node.value, kind, value, problem and f"{_place(node.start_mark)}: {problem}")


def _ambiguity(text: str, value: float) -> str:
    """Return why a number means different things to different readers of YAML; empty if all agree.

    >>> _ambiguity("010", 8)
    "'010' is 8 to some readers of YAML and another number to others: write it without leading zeros and colons"
    """
    digits = text.replace("_", "").lstrip("+-")
    octal = digits.isdigit() and int(digits) != abs(value)
    if not octal and ":" not in text:
        return ""
    return (
        f"{text[:40]!r} is {value} to some readers of YAML and another number to others: write it without leading "
        "zeros and colons"
    )


def _place(mark: yaml.Mark | None) -> str:
    if mark is None:
        return "line 1"
    return f"line {mark.line + 1}, column {mark.column + 1}"


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIME]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.yaml_constructors = {
    tag: getattr(_Loader, made.__name__)
    for tag, made in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in _PLAIN
}


def read_yaml(text: str, where: str, error: type[ShoalError], *, keep_text: bool = False) -> Any:
    """Return the plain values of a YAML text: dictionaries with text keys, lists, text, numbers, true, false and null.

    Args:
        text: the YAML.
        where: name of the text in errors.
        error: class of the errors.
        keep_text: return numbers, true, false and null without quotes as `Unquoted` (see
            `shoal.engine.settings.typed_yaml`).

    Raises:
        ShoalError: an `error` in one sentence, with line and column.
    """
    if len(text) > MAX_BYTES:
        raise error(f"{where} is too long: {len(text):,} characters, at most {MAX_BYTES:,} are read")
    try:
        loader = _TextLoader(text) if keep_text else _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except ReaderError as wrong:
        at = ""
        if isinstance(wrong.position, int):
            at = f", line {text[: wrong.position].count(chr(10)) + 1}"
        raise error(f"{where}{at}: it is not YAML: it contains the character {wrong.character:#x}") from None
    except yaml.MarkedYAMLError as wrong:
        at = _place(wrong.problem_mark or wrong.context_mark)
        problem = " ".join(str(wrong.problem or wrong.context).split())[:200]
        raise error(f"{where}, {at}: it is not YAML that can be used: {problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, TypeError, IndexError) as wrong:
        raise error(f"{where}: it is not YAML ({type(wrong).__name__})") from None


def read_yaml_file(path: Path, what: str, error: type[ShoalError], *, keep_text: bool = False) -> Any:
    """Return the plain values of a YAML file; see `read_yaml`.

    Args:
        path: the file.
        what: its kind, before its path in errors.
        error: class of the errors.
        keep_text: see `read_yaml`.

    Raises:
        ShoalError: an `error`: the file is missing, not text, too long, or not YAML.
    """
    where = f"{what} {path}".strip()
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as wrong:
        raise error(f"{where} cannot be read: {getattr(wrong, 'strerror', None) or wrong}") from None
    if len(raw) > MAX_BYTES:
        raise error(f"{where} is too long: at most {MAX_BYTES:,} bytes are read")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as wrong:
        line = raw[: wrong.start].count(b"\n") + 1
        raise error(f"{where}, line {line}: it is not text in UTF-8 (byte {raw[wrong.start]:#04x})") from None
    return read_yaml(text, where, error, keep_text=keep_text)
