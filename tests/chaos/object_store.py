"""`python -m tests.chaos.object_store HOST PORT JOURNAL`: moto's S3 server that keeps its objects when it is killed.

moto holds everything in memory. Here each request that changed something is in a journal before its answer is given,
and a server that is started on a journal has carried out what is in it before it listens.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.test import EnvironBuilder, run_wsgi_app

READS = ("GET", "HEAD")
OF_A_REQUEST = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "RAW_URI", "REQUEST_URI", "CONTENT_TYPE")
"""What of a request's environment is kept beside its headers."""


class Kept:
    """A WSGI application whose changes are in a journal.

    Args:
        app: what answers.
        journal: a file; what is in it is carried out now.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]], journal: Path) -> None:
        self._app, self._lock = app, threading.Lock()
        journal.touch()
        with journal.open("rb+") as file:
            whole = 0
            for kept, body in requests_in(file):
                run_wsgi_app(app, environment(kept, body), buffered=True)
                whole = file.tell()
            file.truncate(whole)
        self._journal = journal.open("ab")

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request; one that changes something alone, and after it is in the journal."""
        if environ["REQUEST_METHOD"] in READS:
            return self._app(environ, start)
        length = environ.get("CONTENT_LENGTH")
        body = environ["wsgi.input"].read(int(length)) if length else environ["wsgi.input"].read()
        with self._lock:
            said, status, headers = run_wsgi_app(self._app, {**environ, "wsgi.input": io.BytesIO(body)}, buffered=True)
            kept = {key: environ[key] for key in environ if key in OF_A_REQUEST or key.startswith("HTTP_")}
            pickle.dump((kept, body), self._journal)
            self._journal.flush()
        start(status, list(headers))
        return said


def requests_in(file: BinaryIO) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The requests of a journal, but for one in the middle of which the server was killed."""
    while True:
        try:
            yield pickle.load(file)  # which this program wrote itself
        except (EOFError, pickle.UnpicklingError):
            return


def environment(kept: dict[str, Any], body: bytes) -> dict[str, Any]:
    """The environment of a request that is carried out once more."""
    builder = EnvironBuilder(method=kept["REQUEST_METHOD"], input_stream=io.BytesIO(body))
    return {**builder.get_environ(), "CONTENT_LENGTH": str(len(body)), **kept}


def main() -> None:
    """Serve until killed."""
    host, port, journal = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    os.environ["MOTO_PORT"] = str(port)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    app = Kept(DomainDispatcherApplication(create_backend_app), journal)
    run_simple(host, port, app, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
