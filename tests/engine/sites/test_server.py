"""The socket by which runs reach the server of the sites."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.core.errors import ShoalError
from shoal.engine.sites.server import MAX_SOCKET_BYTES, Link, ServerTransport, serve, status_of
from shoal.engine.sites.study import Study
from shoal.engine.sites.transport import SiteLost, SiteStatus


def test_a_run_asks_a_site_through_the_socket(tmp_path: Path) -> None:
    def ask(site: str, content: bytes, seconds: float | None) -> bytes:
        if seconds == 60:
            raise SiteLost("too late")
        return content[::-1]

    study = Study(tmp_path, "localhost", 1)
    (tmp_path / "approved").mkdir()
    (tmp_path / "approved" / "north.signed.zip").touch()
    with pytest.raises(ShoalError, match="start `shoal sites serve`"):
        status_of(study)
    cell = SimpleNamespace(ask=ask, status=lambda sites: dict.fromkeys(sites, SiteStatus(connected=True)))
    Link.register("reached", lambda: cell, exposed=("ask", "status"))
    server = Link(str(study.socket), authkey=b"").get_server()
    server.stop_event = threading.Event()  # type: ignore[attr-defined]  # else `serve_forever` makes it
    threading.Thread(target=server.accepter, daemon=True).start()
    assert ServerTransport(study).ask("north", b"abc") == b"cba"
    with pytest.raises(SiteLost, match="too late"):
        ServerTransport(study, 1).ask("north", b"abc")


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * MAX_SOCKET_BYTES)
    folder.mkdir()
    with pytest.raises(ShoalError, match="lead the study from a folder with a shorter path"):
        serve(Study(folder, "localhost", 0))
