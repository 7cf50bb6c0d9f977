"""The connections between runs and the server of the sites."""

from __future__ import annotations

import os
import socket
import threading
from multiprocessing.connection import Client, Listener

from shoal.engine.sites.server import at_once


def test_a_connection_sends_small_messages_at_once() -> None:
    with Listener(("127.0.0.1", 0), authkey=b"key") as listener:
        threading.Thread(target=listener.accept, daemon=True).start()
        with (
            at_once(Client(listener.address, authkey=b"key")) as link,
            socket.socket(fileno=os.dup(link.fileno())) as same,
        ):
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            link.send_bytes(b"the connection is still open")
