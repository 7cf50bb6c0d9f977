"""YAML from outside, read within bounds; aliases of aliases, which can stand for billions of values, are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent

from shoal.core.errors import ShoalError

MAX_BYTES = 100_000
"""Most bytes of a file: the loader takes seconds for these."""
MAX_ALIASES = 100


class _Composer(Composer):
    """A composer that refuses aliases within values that have an alias, and more than `MAX_ALIASES`."""

    _open = 0
    _aliases = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.parser.peek_event()
        if isinstance(event, AliasEvent):
            self._aliases += 1
            if self._open or self._aliases > MAX_ALIASES:
                raise ComposerError(None, None, "an alias too many, or within another: write it out", event.start_mark)
            return super().compose_node(parent, index)
        anchored = event.anchor is not None
        self._open += anchored
        node = super().compose_node(parent, index)
        self._open -= anchored
        return node


def read_yaml(text: str, where: str, error: type[ShoalError], kind: Literal["base", "safe"] = "safe") -> Any:
    """Return the content of a YAML text: dictionaries, lists and values.

    Args:
        text: the YAML.
        where: name of the text in errors.
        error: class of the errors.
        kind: safe: values have the types of YAML 1.2; base: they are text as it is written, for settings, which have
            types of their own.

    Raises:
        ShoalError: an `error` in one sentence, with line and column.
    """
    if len(text) > MAX_BYTES:
        raise error(f"{where} is too long: {len(text):,} characters, at most {MAX_BYTES:,} are read")
    loader = YAML(typ=kind, pure=True)
    loader.Composer = _Composer
    try:
        return loader.load(text)
    except MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        at = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join(str(wrong.problem or wrong.context).split())[:200]
        raise error(f"{where}{at}: it is not YAML that can be used: {problem}") from None
    except (YAMLError, ValueError, RecursionError, AttributeError, TypeError, IndexError) as wrong:
        raise error(f"{where}: it is not YAML ({type(wrong).__name__})") from None


def read_yaml_file(path: Path, what: str, error: type[ShoalError], kind: Literal["base", "safe"] = "safe") -> Any:
    """Return the content of a YAML file; see `read_yaml`.

    Args:
        path: the file.
        what: its kind, before its path in errors.
        error: class of the errors.
        kind: see `read_yaml`.

    Raises:
        ShoalError: an `error`: the file is missing, not text, too long, or not YAML.
    """
    where = f"{what} {path}".strip()
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode("utf-8")
    except UnicodeDecodeError as wrong:
        raise error(f"{where}: it is not text in UTF-8 (byte {wrong.start + 1})") from None
    except (OSError, ValueError) as wrong:
        raise error(f"{where} cannot be read: {getattr(wrong, 'strerror', None) or wrong}") from None
    return read_yaml(text, where, error, kind)
