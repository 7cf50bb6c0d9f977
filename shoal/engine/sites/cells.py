"""The network between the lead's server and its sites: cells of NVFlare, which know each other by their certificates.

A site opens one connection to the server, both ends show a certificate of the same authority, and a name that is not
that of the certificate is refused. Of NVFlare nothing else runs: no jobs, no commands and no logs reach a site, and a
message holds bytes alone, of which the other side's Shoal makes JSON and tensors.

This is the only module that imports NVFlare.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CellAgent
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from shoal.engine.sites.transport import SiteLost, SiteStatus

SERVER = "server"
CHANNEL = "shoal"
ASK = "ask"
ALIVE = "alive"
ALIVE_SECONDS = 15
"""After so long a site says again that it is there."""
SILENT_SECONDS = 60
"""After so long without a word a site, or the server, counts as gone."""


def open_cell(name: str, url: str, keys: dict[str, str], server: str) -> Cell:
    """Return a cell that takes nothing but bytes, from its peer and for itself.

    Args:
        name: of the cell.
        url: where the server listens.
        keys: files of its certificate, its key and the authority's certificate.
        server: the name in the server's certificate.
    """
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)  # it logs lost connections with tracebacks
    cell = Cell(
        fqcn=name,
        root_url=url,
        secure=True,
        credentials=dict(keys),
        auth_identity_map={SERVER: server},
        max_timeout=3600,
    )

    def refuse(message: Message) -> Message | None:
        peer = message.get_prop(MessagePropKey.ENDPOINT).name
        own = message.get_header(MessageHeaderKey.DESTINATION) == name
        direct = message.get_header(MessageHeaderKey.ORIGIN) == peer and (name == SERVER or peer == SERVER)
        codings = (MessageHeaderKey.PAYLOAD_ENCODING, StreamHeaderKey.PAYLOAD_ENCODING)
        if own and direct and all(message.get_header(coding) != Encoding.FOBS for coding in codings):
            return None
        return Message()  # which is dropped

    cell.core_cell.add_incoming_filter(channel="*", topic="*", cb=refuse)
    return cell


class SiteCell:
    """A site's end: it answers the server's requests, and says that it is there.

    Args:
        name: of the site.
        target: host and port of the server.
        server: the name in the server's certificate.
        keys: folder of the site's certificate and key.
        about: what the site tells the server of itself.
    """

    def __init__(self, name: str, target: str, server: str, keys: Path, about: dict[str, str]) -> None:
        files = {"ca_cert": "rootCA.pem", "client_cert": "client.crt", "client_key": "client.key"}
        self._cell = open_cell(name, f"grpc://{target}", {key: str(keys / file) for key, file in files.items()}, server)
        # `began` tells the server that this is another process than before.
        self._about = json.dumps({**about, "began": str(time.time_ns())}).encode()

    def serve(self, answer: Callable[[bytes], bytes], connected: Callable[[bool], None]) -> None:
        """Answer until the process ends; one request at a time.

        Args:
            answer: makes the answer to a request; it must not fail.
            connected: told when the server is reached, and when it is not any more.
        """
        lock = threading.Lock()

        def reply(request: Message) -> Message:
            with lock:
                return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, answer(bytes(request.payload)))

        self._cell.register_request_cb(channel=CHANNEL, topic=ASK, cb=reply)
        self._cell.start()
        heard = time.monotonic()
        there = False
        while True:
            was_there = there
            there = self.say_alive()
            if there != was_there:
                connected(there)
            if there or not self._cell.core_cell.is_cell_connected(SERVER):
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENT_SECONDS:
                # The connection is dead, and nothing has noticed it: this process begins again.
                os.execv(sys.executable, sys.orig_argv)
            time.sleep(ALIVE_SECONDS if there else 1)

    def say_alive(self) -> bool:
        """Tell the server that the site is there; return whether it heard."""
        if not self._cell.core_cell.is_cell_connected(SERVER):
            return False
        reply = self._cell.send_request(
            channel=CHANNEL, topic=ALIVE, target=SERVER, request=Message(payload=self._about), timeout=ALIVE_SECONDS
        )
        return bool(reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK)


class ServerCell:
    """The lead's end: it hears of sites, and sends them requests.

    Args:
        url: where to listen.
        server: the name in its certificate.
        keys: folder of its certificate and key.
    """

    def __init__(self, url: str, server: str, keys: Path) -> None:
        files = {"ca_cert": "rootCA.pem", "server_cert": "server.crt", "server_key": "server.key"}
        self._cell = open_cell(SERVER, url, {key: str(keys / file) for key, file in files.items()}, server)
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._gone: dict[str, Signal] = {}
        self._heard: dict[str, float] = {}
        self._began: dict[str, str] = {}
        self._told: dict[str, SiteStatus] = {}
        self._cell.core_cell.set_cell_disconnected_cb(self._lost)
        self._cell.register_request_cb(channel=CHANNEL, topic=ALIVE, cb=self._hear)
        self._cell.start()

    def _hear(self, message: Message) -> Message:
        site = str(message.get_header(MessageHeaderKey.ORIGIN))
        told = json.loads(bytes(message.payload))
        began = str(told.get("began"))  # other code may not say
        if self._began.get(site) != began:
            self._end(site)  # of a request to the process before, whose connection may not have ended yet
        self._began[site] = began
        self._heard[site] = time.monotonic()
        self._told[site] = SiteStatus(seen=time.time(), code=str(told["code"]), torch=str(told["torch"]))
        return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK})

    def _lost(self, agent: CellAgent) -> None:
        site = agent.get_fqcn()
        # There again is who says so: a request to a process that has only connected would be lost.
        self._heard.pop(site, None)
        self._end(site)

    def _end(self, site: str) -> None:
        """End the request that a site works on."""
        if site in self._gone:
            self._gone[site].trigger(True)

    def connected(self, site: str) -> bool:
        """Return whether a site is there."""
        silent = time.monotonic() - self._heard.get(site, -SILENT_SECONDS)
        return silent < SILENT_SECONDS and self._cell.core_cell.is_cell_connected(site)

    def status(self, sites: Sequence[str]) -> dict[str, SiteStatus]:
        """Return what is known of each site, by its name."""
        return {site: replace(self._told.get(site, SiteStatus()), connected=self.connected(site)) for site in sites}

    def ask(self, site: str, content: bytes, seconds: float | None) -> bytes | None:
        """Send a request to a site; return the answer, or None where its connection ends before it has answered.

        Args:
            site: its name.
            content: the request.
            seconds: in which it must answer; None: no limit.

        Raises:
            SiteLost: it did not answer in time.
        """
        with self._lock:
            lock = self._locks.setdefault(site, threading.Lock())
        end = time.monotonic() + (seconds or float("inf"))
        with lock:
            self._gone[site] = Signal()
            if not self.connected(site):  # nobody would tell of a connection that has ended before
                return None
            reply = self._send(site, content, end)
        if reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK and reply.payload is not None:
            return bytes(reply.payload)
        if time.monotonic() > end:
            raise SiteLost(f"site {site} has not answered within {seconds:g} seconds")
        return None

    def _send(self, site: str, content: bytes, end: float) -> Message:
        return self._cell.send_request(
            channel=CHANNEL,
            topic=ASK,
            target=site,
            request=Message(payload=content),
            timeout=min(ALIVE_SECONDS, max(0.1, end - time.monotonic())),
            abort_signal=self._gone[site],
            progress_wait_cb=lambda: self.connected(site) and time.monotonic() < end,
        )
