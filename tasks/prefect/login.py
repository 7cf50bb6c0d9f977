"""The login of the pages that `shoal serve` starts: made once for each home, in a file that only its user can read."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import secrets
from urllib.parse import urlsplit

from shoal.core.errors import ShoalError
from shoal.core.private_file import make_private, read_private
from shoal.engine.settings import places

SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
"""Environment variable with the `user:password` that Prefect's server and the MLflow page require."""
CLIENT_AUTH = "PREFECT_API_AUTH_STRING"
"""Environment variable with the `user:password` that Prefect's clients send."""
USER = "shoal"
PASSWORD_BYTES = 24
LOGIN = re.compile(r"[^:\s]+:\S+")


class LoginError(ShoalError):
    """The login of a home cannot be used."""


def known_login() -> str | None:
    """Return the home's `user:password`; None before `shoal serve` has made one.

    Raises:
        PrivateFileError: others can read or write the file. LoginError: it holds no login.
    """
    path = places.login()
    text = read_private(path)
    if text is None:
        return None
    if not LOGIN.fullmatch(text.strip()):
        raise LoginError(f"{path} does not hold user:password: remove it, and `shoal serve` makes a new one")
    return text.strip()


def own_login() -> str:
    """Return `user:password` for the pages of `shoal serve`: from the environment, of the home, or a new one.

    Raises:
        PrivateFileError: others can read or write the file. LoginError: a login cannot be used.
    """
    setting = os.environ.get(SERVER_AUTH)
    if setting:
        if not LOGIN.fullmatch(setting):
            raise LoginError(f"{SERVER_AUTH} is not user:password: set it to a name, a colon and a password")
        return setting
    if known_login() is None:
        make_private(places.login(), f"{USER}:{secrets.token_urlsafe(PASSWORD_BYTES)}\n")
    login = known_login()
    if login is None:
        raise LoginError(f"{places.login()} was removed just after it was made: start again")
    return login


def is_local_url(url: str) -> bool:
    """Return whether an address names this machine, so that what is sent there does not leave it.

    >>> is_local_url("http://127.0.0.1:4200/api"), is_local_url("https://prefect.example.org/api")
    (True, False)
    """
    with contextlib.suppress(ValueError):
        return is_loopback(urlsplit(url).hostname or "")
    return False


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
