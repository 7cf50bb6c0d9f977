"""The lead's server for its sites: it keeps their connections, and runs on the same machine ask through it.

Runs reach it by a socket in the study's folder, which only its user can open.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.managers import BaseManager
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.sites.study import Study, keys_of, serving
from shoal.engine.sites.transport import SiteLost, SiteStatus, Waits

WAIT_SECONDS = 60
"""So long a run waits for a site, or for the server, that is away."""
POLL_SECONDS = 0.5
TRIES = 3
"""So often a request is sent to a site whose connection ends before it has answered."""
MAX_SOCKET_BYTES = 107
"""Longest path that a socket may have."""


class Link(BaseManager):
    """Calls the server's `ServerCell` from other processes of the same user."""

    @classmethod
    def cell(cls, study: Study) -> Any:
        """Return the cell of the server of a study.

        Raises:
            OSError, EOFError: it does not answer.
        """
        link = cls(str(study.socket), authkey=b"")
        link.connect()
        return link.reached()  # type: ignore[attr-defined]


Link.register("reached", exposed=("ask", "status"))


def serve(study: Study) -> None:
    """Keep the sites' connections, and answer the runs of this machine, until the process ends.

    Raises:
        ShoalError: another process does, the port is taken, or the study's folder has too long a path.
    """
    from shoal.engine.sites.cells import ServerCell

    address = str(study.socket)
    with serving(study.folder, "the server of the sites"):
        if fault := port_fault("", study.port):  # the network would share it with another program
            raise ShoalError(f"port {study.port} cannot be used: {fault}")
        if len(os.fsencode(address)) > MAX_SOCKET_BYTES:
            raise ShoalError(f"{address} is too long for a socket: lead the study from a folder with a shorter path")
        cell = ServerCell(f"grpc://0:{study.port}", study.host, keys_of(study.folder))  # on every interface
        study.socket.unlink(missing_ok=True)  # of a process that was killed
        Link.register("reached", lambda: cell, exposed=("ask", "status"))
        Link(address, authkey=b"").get_server().serve_forever()


def port_fault(host: str, port: int) -> str:
    """Return why a port of an address cannot be listened on, such as that another program does; empty if it can."""
    with socket.socket() as probe:
        # Like servers: a port whose last connections are closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


class ServerTransport:
    """The sites of a study, through its server on this machine.

    Args:
        study: the study.
        minutes: in which a site must answer; None: no limit.
    """

    def __init__(self, study: Study, minutes: float | None = None) -> None:
        self._study = study
        self._seconds = None if minutes is None else 60 * minutes
        self.sites: Sequence[str] = study.sites
        if not self.sites:
            raise ShoalError("no site is approved yet: `shoal sites invite NAME` says how one joins")

    def ask(self, site: str, content: bytes, waits: Waits = warnings.warn) -> bytes:
        """Send bytes to a site, again where its connection ends before it has answered; return the answer.

        Raises:
            SiteLost: it did not answer, or the server does not.
        """
        for _ in range(TRIES):
            self._wait_for(site, waits)
            with suppress(OSError, EOFError):
                answer: bytes | None = Link.cell(self._study).ask(site, content, self._seconds)
                if answer is not None:
                    return answer
        raise SiteLost(f"the connection of site {site} ended {TRIES} times before it had answered")

    def _wait_for(self, site: str, waits: Waits) -> None:
        end = time.monotonic() + WAIT_SECONDS
        said = ""
        while away := sites_away(self._study).get(site):
            if time.monotonic() > end:
                raise SiteLost(f"{away} (waited {WAIT_SECONDS} seconds)")
            if away != said:
                waits(f"{away}; it is waited for, {WAIT_SECONDS} seconds at most")
            said = away
            time.sleep(POLL_SECONDS)


def status_of(study: Study) -> dict[str, SiteStatus]:
    """Return what the server knows of each site, by its name.

    Raises:
        ShoalError: the server does not answer.
    """
    try:
        told: dict[str, SiteStatus] = Link.cell(study).status(study.sites)
    except (OSError, EOFError):
        raise ShoalError("the server of the sites does not answer: start `shoal sites serve`") from None
    return told


def sites_away(study: Study) -> dict[str, str]:
    """Return a sentence for each site that is not connected; where the server does not answer, this for all sites."""
    try:
        told = status_of(study)
    except ShoalError as error:
        return dict.fromkeys(study.sites, str(error))
    return {site: f"site {site} is not connected" for site, about in told.items() if not about.connected}
