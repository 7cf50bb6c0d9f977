"""A line between a site and the lead's server that can be cut, and made slow: a relay of TCP on this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Line:
    """A relay to a port.

    Args:
        port: to which it relays.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.rate: float | None = None
        """Bytes a second in each direction; None: as fast as it goes."""
        self.ends: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    near.close()
                    continue
                self.ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self.relay, args=(source, sink), daemon=True).start()

    def relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 14):
                if self.rate is not None:
                    time.sleep(len(content) / self.rate)
                sink.sendall(content)
        for end in (source, sink):
            end.close()

    def cut(self) -> None:
        """End all connections; a new one may be made."""
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.ends.clear()

    def close(self) -> None:
        self.listener.close()
        self.cut()
