"""A guard in front of a server's pages: it answers only its own page, and only users with the password.

A browser sends requests for any page that its user visits, and any program of this machine can connect to a loopback
port. The guard refuses requests under a foreign name of the server (DNS rebinding), requests of other pages (cross-site
requests, WebSockets included), and, where it has a login, requests without it.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

HOSTS_VARIABLE = "SHOAL_PAGE_HOSTS"
"""Further names of the pages' host, such as `shoal.example.org,other.example.org:8443`."""
AUTH_VARIABLE = "SHOAL_PAGE_AUTH"
"""`user:password` that the guard requires."""
LOGIN_PATH = "/shoal-login"
OWN_SITES = ("same-origin", "none")
"""Values of the header Sec-Fetch-Site for requests of the page itself, or of the user."""
CHALLENGE = {"www-authenticate": 'Basic realm="Shoal", charset="UTF-8"'}
OWN_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}
"""Headers of the guard's answers."""


@dataclass(eq=False)
class Guard:
    """An ASGI application that passes admitted requests on to another one.

    Attributes:
        app: the server's application.
        hosts: names of the server in small letters, with ports other than 80 and 443, beside `localhost` and numeric
            addresses. A hostile page can give a server another name, but not these.
        links: a pattern of the paths that links of other pages may open.
        login_page: HTML at `LOGIN_PATH`, the target of the link that logs a browser in.
        login: required `user:password`; None where the application itself requires one.
        open_paths: paths that everybody may read.
        closed: beginnings of paths that nobody may use.
    """

    app: ASGIApp
    hosts: Collection[str]
    links: str
    login_page: str
    login: str | None = None
    open_paths: Collection[str] = ()
    closed: tuple[str, ...] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, answer it, or pass it on to the application."""
        answer = self._answer(scope) if scope["type"] in ("http", "websocket") else None
        if answer is None:
            await self.app(scope, receive, without_frames(send))
        elif scope["type"] == "websocket":
            await WebSocketClose(1008)(scope, receive, send)
        else:
            answer.headers.update(OWN_HEADERS)
            await answer(scope, receive, send)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the guard's own answer to a request; None where the application answers."""
        headers = Headers(scope=scope)
        if why := self._not_own(scope, headers):
            return PlainTextResponse(f"{why}\n", 403)
        if not self._logged_in(scope, headers):
            why = "Log in with the user and the password that `shoal serve` shows.\n"
            return PlainTextResponse(why, 401, CHALLENGE)
        if scope["path"].startswith(self.closed):
            return PlainTextResponse("This part of the server is off.\n", 403)
        if scope["type"] == "http" and scope["path"] == LOGIN_PATH:
            return HTMLResponse(self.login_page)
        return None

    def _not_own(self, scope: Scope, headers: Headers) -> str | None:
        """Return why a request comes neither from the server's own page nor from its user; None where it does."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own_host(hosts[0].lower()):
            return f"This server does not answer under this name. Add names of your own to {HOSTS_VARIABLE}."
        origins = headers.getlist("origin")
        sites = headers.getlist("sec-fetch-site")
        if (
            len(origins) > 1
            or not all(self._is_own_origin(origin, hosts[0]) for origin in origins)
            or not (set(sites) <= set(OWN_SITES) or self._is_link(scope, headers))
        ):
            return "Another page may not use this server."
        return None

    def _is_own_host(self, host: str) -> bool:
        if host in self.hosts:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name == "localhost" or bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def _is_own_origin(self, origin: str, host: str) -> bool:
        scheme, _, place = origin.lower().partition("://")
        return scheme in ("http", "https") and (place == host.lower() or place in self.hosts)

    def _is_link(self, scope: Scope, headers: Headers) -> bool:
        """Return whether the user followed a link to a page; the page with the link cannot read the answer."""
        return (
            scope["type"] == "http"
            and scope["method"] == "GET"
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
            and re.fullmatch(self.links, scope["path"]) is not None
        )

    def _logged_in(self, scope: Scope, headers: Headers) -> bool:
        if self.login is None:
            return True
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in self.open_paths:
            return True
        expected = b"Basic " + base64.b64encode(self.login.encode())
        return hmac.compare_digest(headers.get("authorization", "").encode(), expected)


def without_frames(send: Send) -> Send:
    """Return a `send` that forbids other origins to show the answer in a frame, where clicks could be stolen."""

    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            message.setdefault("headers", [])
            MutableHeaders(scope=message).setdefault("x-frame-options", "SAMEORIGIN")
        await send(message)

    return sender


def further_hosts() -> list[str]:
    """Return the names of SHOAL_PAGE_HOSTS, in small letters."""
    return [name.strip().lower() for name in os.environ.get(HOSTS_VARIABLE, "").split(",") if name.strip()]
