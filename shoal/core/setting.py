"""Settings are frozen dataclasses; `setting` adds what a reader and a form need: a meaning and the bounds.

They stay plain dataclasses so that a method or a partition runs where only torch is installed. The settings file, the
command line and Prefect's form build their schema from the same fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

BOUNDS = ("gt", "ge", "lt", "le")


@dataclass(frozen=True)
class FileFormat:
    """A text file that a setting can be given as.

    Attributes:
        name: what such a file is called, in words.
        parse: the setting's value from the file's text; raises a `ShoalError` that names what is wrong in it.
    """

    name: str
    parse: Callable[[str], Any]


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
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    choices: Iterable[str] = (),
    forms: NameForms | None = None,
    file: FileFormat | None = None,
) -> Any:
    """Return a dataclass field with a one-line meaning and its bounds or choices.

    `choices` is for names that a registry knows; where the names are few and fixed, a `Literal` type says as much.
    `forms` allows names of some forms beside them. With
    `file` the name of a file stands for its content: the reader of settings opens it, the dataclass holds the content.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Example:
    ...     beta: float = setting(0.5, "concentration parameter of the Dirichlet distribution", gt=0)
    >>> Example().beta
    0.5
    """
    bounds = {"gt": gt, "ge": ge, "lt": lt, "le": le}
    metadata = {"doc": doc, **{name: bound for name, bound in bounds.items() if bound is not None}}
    if choices:
        metadata["choices"] = tuple(choices)
    if forms is not None:
        metadata["forms"] = forms
    if file is not None:
        metadata["file"] = file
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)
