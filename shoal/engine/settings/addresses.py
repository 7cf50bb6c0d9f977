"""Addresses without their secrets: settings name them, and files, logs and pages show them.

A password or token stands in the environment, and a setting names the variable: `https://me:${MLFLOW_PASSWORD}@host`.
The name is replaced where the address is used, so that a run is resumed wherever the variable is set; what is written
holds the name. `masked` takes out what reaches a message by other ways, such as MLFLOW_TRACKING_URI.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import quote

from shoal.core.errors import ShoalError

MASK = "***"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_END = r"\s\"'<>"
_USER = re.compile(rf"(?P<before>\w[\w+.-]*://)(?P<user>[^/:@{_END}]*)(?P<colon>:(?!\d+/))?(?(colon)[^@{_END}]*)@")
_WORDS = r"token|passw|pwd|secret|signature|\bsig|api[_-]?key|access[_-]?key|account[_-]?key|credential"
_QUERY = re.compile(rf"(?P<before>[?&#;][^=&?#;{_END}]*(?:{_WORDS})[^=&?#;{_END}]*=)(?P<value>[^&#;{_END}]+)", re.I)
SCHEMA: dict[str, Any] = {
    "pattern": r"^([^@]*|[^:]*(://)?[^:]*|[^:]*://[^:/@]*:(\$\{[A-Za-z0-9_]+\})+@[^@]*|[^:]*://[^:/@]*:[0-9]+/.*)$"
}
"""For the schema of a setting: Prefect's server refuses an address with a password before it keeps it."""


class AddressError(ShoalError):
    """An address names an environment variable that is not set."""


def masked(text: str, *addresses: str | None) -> str:
    """A text without passwords and tokens.

    Args:
        text: for people.
        addresses: settings whose `${NAME}` may have been replaced in it.

    >>> masked("https://me:word@host/x?token=abc failed")
    'https://me:***@host/x?token=*** failed'
    """
    for address in addresses:
        for name in _VARIABLE.findall(address or ""):
            value = os.environ.get(name)
            if value:
                for form in {value, quote(value, safe="")}:
                    text = text.replace(form, f"${{{name}}}")
    text = _USER.sub(_without_password, text)
    return _QUERY.sub(lambda found: found["before"] + (found["value"] if _named(found["value"]) else MASK), text)


def _without_password(found: re.Match[str]) -> str:
    whole, user = found[0], found["user"]
    password = whole[len(found["before"]) + len(user) + 1 : -1]
    if found["colon"]:
        return f"{found['before']}{user}:{password if _named(password) else MASK}@"
    # Who gives an HTTP server one word alone gives it a token.
    token = found["before"].lower() in ("http://", "https://") and not _named(user)
    return f"{found['before']}{MASK}@" if token else whole


def _named(value: str) -> bool:
    """Whether a value is nothing but names of variables, or nothing."""
    return not _VARIABLE.sub("", value)


def check_address(address: str | None, setting: str) -> str | None:
    """Refuse an address that holds a password or a token.

    Raises:
        ValueError: says how to give it instead.
    """
    if address is not None and masked(address) != address:
        raise ValueError(
            f"{setting} holds a password or token, and settings are kept with the run and shown: write ${{NAME}} in "
            "its place, and set the environment variable NAME"
        )
    return address


def resolved(address: str, setting: str) -> str:
    """An address with the values of the environment variables that it names.

    Args:
        address: a setting.
        setting: its name, for errors.

    Raises:
        AddressError: a variable is not set.
    """

    def value(found: re.Match[str]) -> str:
        given = os.environ.get(found[1])
        if given is None:
            raise AddressError(f"{setting} names the environment variable {found[1]}, which is not set here: set it")
        before = address[: found.start()]
        # In the host or a path a value stands as it is; a password may hold any character.
        within = "@" in address[found.end() :].split("/")[0] or "?" in before
        return quote(given, safe="") if within else given

    return _VARIABLE.sub(value, address)


def without_user(address: str) -> str:
    """An address for a page: without user, password and query.

    >>> without_user("https://me:word@host:5000/x")
    'https://host:5000/x'
    """
    return _USER.sub(lambda found: found["before"], address).partition("?")[0]
