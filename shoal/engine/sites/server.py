"""The lead's server for its sites: it keeps their connections, and runs on the same machine ask through it.

Runs reach it on the loopback interface, with a key that the server writes for its user alone.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING

from shoal.core.errors import ShoalError
from shoal.core.records import record_from_json
from shoal.engine.sites.study import Study, keys_of, serving
from shoal.engine.sites.transport import SiteLost, Waits
from shoal.engine.store.codec import PRIVATE, write_atomic

if TYPE_CHECKING:
    from shoal.engine.sites.cells import ServerCell

HERE = ("127.0.0.1", 0)
WAIT_SECONDS = 60
"""So long a run waits for a site, or for the server, that is away."""
POLL_SECONDS = 0.5
TRIES = 3
"""So often a request is sent to a site whose connection ends before it has answered."""


def serve(study: Study) -> None:
    """Keep the sites' connections, and answer the runs of this machine, until the process ends.

    Raises:
        ShoalError: another process does, or the port is taken.
    """
    from shoal.engine.sites.cells import ServerCell

    key = secrets.token_bytes(32)
    with serving(study.folder, "the server of the sites"), Listener(HERE, backlog=64, authkey=key) as listener:
        if fault := port_fault("", study.port):  # the network would share it with another program
            raise ShoalError(f"port {study.port} cannot be used: {fault}")
        cell = ServerCell(f"grpc://0:{study.port}", study.host, keys_of(study.folder))  # on every interface
        entry = {"port": listener.address[1], "key": key.hex()}
        write_atomic(study.entry, json.dumps(entry).encode(), mode=PRIVATE)
        while True:
            with suppress(OSError, EOFError, AuthenticationError):  # of someone without the key, or who has gone
                threading.Thread(target=attend, args=(cell, study, at_once(listener.accept())), daemon=True).start()


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


def attend(cell: ServerCell, study: Study, link: Connection) -> None:
    """Answer one question of a run."""
    with link, suppress(OSError, EOFError):
        question = json.loads(link.recv_bytes())
        if "site" not in question:
            told = {site: {**cell.about.get(site, {}), "connected": cell.connected(site)} for site in study.sites}
            link.send_bytes(json.dumps(told).encode())
            return
        try:
            answer = cell.ask(question["site"], link.recv_bytes(), question["seconds"])
        except SiteLost as lost:
            link.send_bytes(json.dumps({"lost": str(lost)}).encode())
            return
        if answer is not None:  # else the run hears that the connection has ended
            link.send_bytes(b"{}")
            link.send_bytes(answer)


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
            with suppress(OSError, EOFError, AuthenticationError):
                return self._ask(site, content)
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

    def _ask(self, site: str, content: bytes) -> bytes:
        with connect(self._study) as link:
            link.send_bytes(json.dumps({"site": site, "seconds": self._seconds}).encode())
            link.send_bytes(content)
            told = json.loads(link.recv_bytes())
            if "lost" in told:
                raise SiteLost(told["lost"])
            return link.recv_bytes()


@dataclass(frozen=True)
class SiteStatus:
    """What the server knows of a site.

    Args:
        connected: whether it is there.
        seen: when it last said so, in seconds since 1970; None: never.
        code, torch: the digest of its Shoal, and its version of torch.
    """

    connected: bool
    seen: float | None = None
    code: str = ""
    torch: str = ""


def status_of(study: Study) -> dict[str, SiteStatus]:
    """Return what the server knows of each site, by its name.

    Raises:
        ShoalError: the server does not answer.
    """
    try:
        with connect(study) as link:
            link.send_bytes(b"{}")
            told = json.loads(link.recv_bytes())
            return {site: record_from_json(SiteStatus, entry) for site, entry in told.items()}
    except (OSError, EOFError, AuthenticationError):
        raise ShoalError("the server of the sites does not answer: start `shoal sites serve`") from None


def sites_away(study: Study) -> dict[str, str]:
    """Return a sentence for each site that is not connected; where the server does not answer, this for all sites."""
    try:
        told = status_of(study)
    except ShoalError as error:
        return dict.fromkeys(study.sites, str(error))
    return {site: f"site {site} is not connected" for site, about in told.items() if not about.connected}


def connect(study: Study) -> Connection:
    """Return a connection to the server of a study.

    Raises:
        OSError, EOFError, AuthenticationError: it does not answer.
    """
    entry = json.loads(study.entry.read_text())
    return at_once(Client(("127.0.0.1", entry["port"]), authkey=bytes.fromhex(entry["key"])))


def at_once(link: Connection) -> Connection:
    """Return a connection that sends small messages at once; else they wait 40 ms for an acknowledgement of others."""
    with socket.socket(fileno=os.dup(link.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link
