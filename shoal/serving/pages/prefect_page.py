"""Prefect's server behind the guard: `python -m shoal.serving.pages.prefect_page --host HOST --port PORT`.

It serves the same as `prefect server start`. Prefect itself requires PREFECT_SERVER_API_AUTH_STRING.
"""

from __future__ import annotations

import argparse
import os

from shoal.serving.pages.guard import Guard, further_hosts

LOGIN_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Prefect: log in</title>
<p>The link has no password: use the whole link that `shoal serve` shows.</p>
<script>
  // Browsers send the part after # to no server. Prefect's page keeps the password in the same place.
  const login = decodeURIComponent(location.hash.slice(1));
  if (login) {
    localStorage.setItem("prefect-password", btoa(login));
    location.replace("/deployments");
  }
</script>
"""
"""The page that logs a browser in."""
LINKS = r"/(?!api(/|$)).*"
"""A pattern of every page, without the API."""


def main() -> None:
    """Serve until the process ends."""
    parser = argparse.ArgumentParser(prog="python -m shoal.serving.pages.prefect_page", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=4200)
    options = parser.parse_args()
    os.umask(0o077)  # the database is only for its user
    # The page calls the API under the name under which it was opened.
    os.environ.setdefault("PREFECT_UI_API_URL", "/api")

    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    if settings.api.auth_string is None:
        parser.error("PREFECT_SERVER_API_AUTH_STRING is not set: set it to the user:password of the server")
    app = Guard(create_app(final=True), hosts=further_hosts(), links=LINKS, login_page=LOGIN_PAGE)
    uvicorn.run(
        app,
        host=options.host,
        port=options.port,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )


if __name__ == "__main__":
    main()
