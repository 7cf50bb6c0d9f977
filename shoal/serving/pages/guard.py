"""A guard in front of a server's pages: it answers only its own page, and only users with the password.

A browser sends requests for any page that its user visits, and any program of this machine can connect to a loopback
port. The guard refuses requests under a foreign name of the server (DNS rebinding), requests of other pages (cross-site
requests, WebSockets included), and, where it has a login, requests without it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

HOSTS_VARIABLE = "SHOAL_PAGE_HOSTS"
"""Further names of the pages' host, such as `shoal.example.org,other.example.org:8443`."""
AUTH_VARIABLE = "SHOAL_PAGE_AUTH"
"""`user:password` that the guard requires."""
LOGIN_PATH = "/shoal-login"
OWN_SITES = ("same-origin", "none")
"""Values of the header Sec-Fetch-Site for requests of the page itself, or of the user."""
REALM = "Shoal"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """An ASGI application that passes admitted requests on to another one.

    Args:
        app: the server's application.
        hosts: names of the server, with ports other than 80 and 443, beside `localhost` and numeric addresses. A
            hostile page can give a server another name, but not these.
        links: paths that links of other pages may open.
        login_page: HTML at `LOGIN_PATH`, the target of the link that logs a browser in.
        login: required `user:password`; None where the application itself requires one.
        open_paths: paths that everybody may read.
        closed: the beginning of paths that nobody may use; empty: none.
    """

    def __init__(
        self,
        app: App,
        *,
        hosts: Iterable[str],
        links: str,
        login_page: str,
        login: str | None = None,
        open_paths: Iterable[str] = (),
        closed: str = "",
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._links = re.compile(links)
        self._login = login
        self._open_paths = frozenset(open_paths)
        self._login_page = login_page
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, answer it, or pass it on to the application."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope)
        if why := self._not_own(scope, headers):
            await refuse(scope, send, 403, why)
        elif not self._logged_in(scope, headers):
            challenge = (b"www-authenticate", f'Basic realm="{REALM}", charset="UTF-8"'.encode())
            await refuse(scope, send, 401, "Log in with the user and the password that `shoal serve` shows.", challenge)
        elif self._closed and scope["path"].startswith(self._closed):
            await refuse(scope, send, 403, "This part of the server is off.")
        elif scope["type"] == "http" and scope["path"] == LOGIN_PATH:
            await answer(send, 200, self._login_page, [(b"content-type", b"text/html; charset=utf-8")])
        else:
            await self._app(scope, receive, without_frames(send))

    def _not_own(self, scope: Scope, headers: Headers) -> str | None:
        """Return why a request comes neither from the server's own page nor from its user; None where it does."""
        host = headers.only("host")
        if host is None or not self._is_own_host(host):
            return f"This server does not answer under this name. Add names of your own to {HOSTS_VARIABLE}."
        origin = headers.only("origin")
        if origin is None and headers.has("origin"):
            return "The request names two origins."
        if origin is not None and not self._is_own_origin(origin, host):
            return "Another page may not use this server."
        site = headers.only("sec-fetch-site")
        if site is not None and site not in OWN_SITES and not self._is_link(scope, headers):
            return "Another page may not use this server."
        return None

    def _is_own_host(self, host: str) -> bool:
        host = host.lower()
        if host in self._hosts:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name == "localhost" or bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def _is_own_origin(self, origin: str, host: str) -> bool:
        scheme, _, place = origin.lower().partition("://")
        return scheme in ("http", "https") and (place == host.lower() or place in self._hosts)

    def _is_link(self, scope: Scope, headers: Headers) -> bool:
        """Return whether the user followed a link to a page; the page with the link cannot read the answer."""
        return (
            scope["type"] == "http"
            and scope["method"] == "GET"
            and headers.only("sec-fetch-mode") == "navigate"
            and headers.only("sec-fetch-dest") == "document"
            and self._links.fullmatch(scope["path"]) is not None
        )

    def _logged_in(self, scope: Scope, headers: Headers) -> bool:
        if self._login is None:
            return True
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in self._open_paths:
            return True
        kind, _, credentials = (headers.only("authorization") or "").partition(" ")
        try:
            decoded = base64.b64decode(credentials.strip(), validate=True)
        except binascii.Error:
            return False
        return kind.lower() == "basic" and hmac.compare_digest(decoded, self._login.encode())


class Headers:
    """The headers of a request."""

    def __init__(self, scope: Scope) -> None:
        self._listed = [(name.lower(), value.decode("latin-1").strip()) for name, value in scope["headers"]]

    def has(self, name: str) -> bool:
        """Return whether the request has a header."""
        return any(known == name.encode() for known, _ in self._listed)

    def only(self, name: str) -> str | None:
        """Return the value of a header; None where it is missing, or there several times."""
        values = [value for known, value in self._listed if known == name.encode()]
        return values[0] if len(values) == 1 else None


async def refuse(scope: Scope, send: Send, status: int, why: str, *headers: tuple[bytes, bytes]) -> None:
    """Refuse a request, or a WebSocket."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await answer(send, status, why + "\n", [(b"content-type", b"text/plain; charset=utf-8"), *headers])


async def answer(send: Send, status: int, text: str, headers: list[tuple[bytes, bytes]]) -> None:
    """Send a complete answer."""
    body = text.encode()
    sent = [
        *headers,
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
        (b"referrer-policy", b"no-referrer"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": body})


def without_frames(send: Send) -> Send:
    """Return a `send` that forbids other origins to show the answer in a frame, where clicks could be stolen."""

    async def sender(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            if not any(name.lower() == b"x-frame-options" for name, _ in headers):
                headers.append((b"x-frame-options", b"SAMEORIGIN"))
            message = {**message, "headers": headers}
        await send(message)

    return sender


def further_hosts() -> list[str]:
    """Return the names of SHOAL_PAGE_HOSTS."""
    return [name.strip() for name in os.environ.get(HOSTS_VARIABLE, "").split(",") if name.strip()]
