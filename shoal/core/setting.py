"""Settings are frozen dataclasses; `setting` adds what a reader and a form need: a meaning and the bounds.

They stay plain dataclasses so that a method runs where only torch is installed. Whatever reads settings
from outside checks them by the metadata of their fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class NameForms:
    """Forms of names that no registry lists.

    Attributes:
        pattern: as a regular expression.
        words: as an error lists them.
    """

    pattern: str
    words: str


def setting(
    default: Any,
    doc: str,
    *,
    choices: Iterable[str] = (),
    forms: NameForms | None = None,
    **bounds: float | str,
) -> Any:
    """Return a dataclass field with a one-line meaning and its bounds or choices.

    Args:
        default: of the setting.
        doc: its meaning.
        choices: names that a registry knows; where the names are few and fixed, a `Literal` type says as much.
        forms: allowed beside the choices.
        bounds: gt, ge, lt, le for numbers; pattern for text.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Example:
    ...     beta: float = setting(0.5, "concentration parameter of the Dirichlet distribution", gt=0)
    >>> Example().beta
    0.5
    """
    metadata: dict[str, Any] = {"description": doc, **bounds}
    if choices:
        names = list(choices)
        pattern = f"^(?:{'|'.join(map(re.escape, names))})$"
        metadata["choices"] = names
        if forms is None:
            metadata["json_schema_extra"] = {"enum": names}
        else:
            metadata["choices"] = [*names, forms.words]
            kinds = [{"type": "string", "enum": names}, {"type": "string", "pattern": forms.pattern}, {"type": "null"}]
            metadata["json_schema_extra"] = {"anyOf": kinds}
            pattern = f"{pattern}|{forms.pattern}"
        metadata["pattern"] = pattern
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)
