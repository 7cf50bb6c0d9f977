"""The events of a run: a JSON object a line, each with a checksum; warnings among them; and who hears them at once.

An event may come from any thread: the engine's, that which logs to MLflow, that which draws figures. `listening` makes
sure that whoever watches the run hears all of them when they happen.
"""

from __future__ import annotations

import contextlib
import json
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

LEVEL = "level"
"""The entry of an event that says how much it matters; events that are no warning have none."""
WARNING = "warning"
CHECKSUM = "crc32"
"""The entry of a line that holds the CRC-32 of its other entries."""
WARNINGS = frozenset(
    {
        "budget_spent",
        "checkpoint_unreadable",
        "client_failed",
        "client_left_out",
        "client_quarantined",
        "client_refused",
        "cohort_reissued",
        "drift",
        "files_unknown",
        "manifest_unreadable",
        "mlflow_incomplete",
        "mlflow_store_replaced",
        "mlflow_unreachable",
        "model_not_registered",
        "not_shown",
        "prefect_lost",
        "slot_lost",
        "software_changed",
    }
)
"""Kinds of events that a user must see."""
MAX_CLOSING_LINES = 20
"""Closing lines name at most so many warnings; events.jsonl has all of them."""

Event = dict[str, Any]
Listener = Callable[[Event], None]

_listeners: dict[Path, list[Listener]] = {}
_lock = threading.Lock()


@contextlib.contextmanager
def listening(run: Path, listeners: Sequence[Listener]) -> Iterator[None]:
    """Call some functions with every event of a run that this process writes, whichever thread it comes from.

    Args:
        run: the run's folder.
        listeners: are called in the thread of the event; what they raise ends what the thread is at.
    """
    added = list(listeners)
    with _lock:
        _listeners[run] = [*_listeners.get(run, []), *added]
    try:
        yield
    finally:
        with _lock:
            left = _listeners.pop(run, [])
            for listener in added:
                left.remove(listener)
            if left:
                _listeners[run] = left


def tell_listeners(run: Path, event: Event) -> None:
    """Call those who listen to a run."""
    with _lock:
        listeners = list(_listeners.get(run, []))
    for listener in listeners:
        listener(event)


def is_warning(event: Event) -> bool:
    """Return whether a user must see the event; those that version 0.1.0 wrote are known by their kind."""
    return event.get(LEVEL) == WARNING or event.get("event") in WARNINGS


def words_of(event: Event) -> str:
    """Return what an event says, in words."""
    return str(event.get("message", event["event"]))


def warning_lines(events: Sequence[Event]) -> list[str]:
    """Return the warnings among some events, a line each, every text once.

    Args:
        events: in the order in which they happened.
    """
    texts = list(dict.fromkeys(words_of(event) for event in events if is_warning(event)))
    lines = texts[:MAX_CLOSING_LINES]
    if len(texts) > len(lines):
        lines.append(f"and {len(texts) - len(lines)} more warnings: see events.jsonl of the run")
    return lines


def line_of(event: Event) -> str:
    """Return an event as a line of events.jsonl."""
    return json.dumps({**event, CHECKSUM: checksum(event)}) + "\n"


def checksum(event: Event) -> int:
    """Return the CRC-32 of an event, whatever the order of its entries."""
    return zlib.crc32(json.dumps(event, sort_keys=True).encode())


def read_line(line: bytes) -> Event | None:
    """Return the event of a line; None where it holds none, or was changed since it was written."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
        return None
    expected = entry.pop(CHECKSUM, None)
    if expected is not None and expected != checksum(entry):
        return None
    return entry
