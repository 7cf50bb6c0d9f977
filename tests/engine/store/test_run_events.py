"""Events: a seal a line, warnings, and listeners that hear those of every thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.core.seal import SEAL
from shoal.engine.store.run_events import (
    Event,
    is_warning,
    line_of,
    observing,
    read_line,
)
from shoal.lifecycle.starting import new_run

Make = Callable[..., Any]


def test_a_line_that_changed_is_no_event() -> None:
    event = Event("scored", {"value": 0.25}, time=1.5)
    line = line_of(event).encode()
    assert read_line(line) == event
    assert read_line(line.replace(b"0.25", b"0.26")) is None
    assert read_line(b'{"event": "scored", "value": 0.26}') is None, "without a seal"
    assert read_line(b"[1]") is read_line(b"1") is None
    assert read_line(b'{"event": "sco') is None
    assert SEAL in json.loads(line)


def test_an_event_says_what_its_kind_has() -> None:
    event = Event("client_failed", {"round": 2, "client": 1, "message": "no"}, time=1.5)
    assert (event.round, event.client, event.message, event.metrics) == (2, 1, "no", {})
    with pytest.raises(AttributeError, match="an event 'client_failed' has no rounds"):
        _ = event.rounds
    assert read_line(line_of(Event("x", {"note": None})).encode()) == Event("x", {"note": None})


def test_listeners_hear_the_events_of_every_thread(home: Path, small: Make) -> None:
    run = new_run(small())
    heard: list[str] = []
    first, second = [lambda event: heard.append(event.kind)], [lambda event: heard.append("again")]
    run.event("before")
    with observing(run.path, first), observing(run.path, []):
        with observing(run.path, second):
            thread = threading.Thread(target=run.event, args=("mlflow_incomplete",))
            thread.start()
            thread.join()
        run.event("later")
    run.event("after")
    assert heard == ["mlflow_incomplete", "again", "later"]
    assert [event.kind for event in run.events() if is_warning(event)] == ["mlflow_incomplete"]
