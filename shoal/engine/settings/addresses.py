"""Addresses without their secrets, since files, logs and pages show the addresses in settings.

A password or token stands in an environment variable, which a setting names: `https://me:${MLFLOW_PASSWORD}@host`.
Files contain the name. `fill_variables` replaces it by the value just before the address is used, so that a run can be
resumed wherever the variable is set. `masked` removes secrets that reach a message in other ways, such as by
MLFLOW_TRACKING_URI.
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
ADDRESS_SCHEMA: dict[str, Any] = {
    "pattern": r"^([^@]*|[^:]*(://)?[^:]*|[^:]*://[^:/@]*:(\$\{[A-Za-z0-9_]+\})+@[^@]*|[^:]*://[^:/@]*:[0-9]+/.*)$"
}
"""JSON schema of a setting with which Prefect's server refuses an address with a password before it stores it."""


class AddressError(ShoalError):
    """An address names an environment variable that is not set."""


def masked(text: str, *addresses: str | None) -> str:
    """Return a text without passwords and tokens.

    Args:
        text: for people.
        addresses: settings whose `${NAME}` may have been replaced in the text.

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
    return _QUERY.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    if _names_variables(found["value"]):
        return found[0]
    return f"{found['before']}{MASK}"


def _without_password(found: re.Match[str]) -> str:
    before = found["before"]
    user = found["user"]
    if found["colon"]:
        password = found[0][len(before) + len(user) + 1 : -1]
        return found[0] if _names_variables(password) else f"{before}{user}:{MASK}@"
    # A single word for an HTTP server is a token.
    if before.lower() in ("http://", "https://") and not _names_variables(user):
        return f"{before}{MASK}@"
    return found[0]


def _names_variables(value: str) -> bool:
    """Return whether a value consists only of `${NAME}` of variables; true for an empty one."""
    return not _VARIABLE.sub("", value)


def check_address(address: str | None) -> str | None:
    """Return an address unchanged if it holds no password and no token.

    Raises:
        ValueError: says how to write it instead.
    """
    if address is not None and masked(address) != address:
        raise ValueError(
            "the address contains a password or token, and settings are stored and shown: write ${NAME} in its place, "
            "and set the environment variable NAME"
        )
    return address


def fill_variables(address: str, setting: str) -> str:
    """Return an address with the values of the environment variables that it names.

    Args:
        address: a setting.
        setting: its name, for errors.

    Raises:
        AddressError: a variable is not set.
    """

    def value(found: re.Match[str]) -> str:
        text = os.environ.get(found[1])
        if text is None:
            raise AddressError(f"{setting} names the environment variable {found[1]}, which is not set here: set it")
        before = address[: found.start()]
        # A password or a query may contain any character, which must be quoted; a host or path is used as it is.
        if "@" in address[found.end() :].split("/")[0] or "?" in before:
            return quote(text, safe="")
        return text

    return _VARIABLE.sub(value, address)


def without_user(address: str) -> str:
    """Return an address for a page: without user, password and query.

    >>> without_user("https://me:word@host:5000/x")
    'https://host:5000/x'
    """
    return _USER.sub(lambda found: found["before"], address).partition("?")[0]
