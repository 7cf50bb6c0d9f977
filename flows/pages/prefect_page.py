"""Prefect's server behind the guard: `python -m shoal.flows.pages.prefect_page --host HOST --port PORT`.

It serves what `prefect server start` serves. Prefect itself asks for PREFECT_SERVER_API_AUTH_STRING.
"""

from __future__ import annotations

import argparse
import os

from shoal.flows.pages.guard import Guard, further_hosts

LOGIN_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Prefect: log in</title>
<p id="told">The link has no password: take it as `shoal serve` shows it.</p>
<script>
  // What follows # is not sent to any server. Prefect's page keeps the password in the same place.
  const login = decodeURIComponent(location.hash.slice(1));
  if (login) {
    localStorage.setItem("prefect-password", btoa(login));
    location.replace("/deployments");
  }
</script>
"""
"""The page of the link that logs a browser in."""
LINKS = r"/(?!api(/|$)).*"
"""Every page, and nothing of the API."""


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m shoal.flows.pages.prefect_page", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=4200)
    given = parser.parse_args()
    os.umask(0o077)  # its database is for its user alone
    # The page asks the server under whatever name it was opened.
    os.environ.setdefault("PREFECT_UI_API_URL", "/api")

    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    if settings.api.auth_string is None:
        parser.error("PREFECT_SERVER_API_AUTH_STRING is not set: set it to the user:password to ask for")
    app = Guard(create_app(final=True), hosts=further_hosts(), links=LINKS, login_page=LOGIN_PAGE)
    uvicorn.run(
        app,
        host=given.host,
        port=given.port,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )


if __name__ == "__main__":
    main()
