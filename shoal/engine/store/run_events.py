"""The events of a run: a JSON object a line, each with a checksum; warnings among them; and who hears them at once.

An event may come from any thread: the engine's, one that logs to MLflow, one that draws figures. `listening` calls the
observers of the run with all of them when they happen.
"""

from __future__ import annotations

import contextlib
import json
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.records import BadRecord

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

ENTRY_TYPES = {"message": (str,), "round": (int,), "rounds": (int,), "metrics": (dict,), "client": (int, str)}
"""The types of the entries that mean the same in every kind of event."""


@dataclass(frozen=True)
class Event:
    """Something that happened in a run: a line of events.jsonl.

    Args:
        kind: what happened, such as round_finished; the entry `event` of the line.
        facts: the further entries, by name. Each kind has its own; those that several kinds have are properties.
        time: when, in seconds since the epoch; None in lines of version 0.1.0 that do not say it.
        level: `WARNING` where a user must see it.
    """

    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    time: float | None = None
    level: str | None = None

    @property
    def message(self) -> str:
        """What the event says, in words; empty where its kind says it all."""
        return str(self.facts.get("message", ""))

    @property
    def round(self) -> int:
        """The round that it happened in, or after which."""
        return int(self._fact("round"))

    @property
    def rounds(self) -> int:
        """How many rounds the run is to have."""
        return int(self._fact("rounds"))

    @property
    def client(self) -> int | str:
        """The number of a client, or its name where the event is about data."""
        client: int | str = self._fact("client")
        return client

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the new state by name; empty where it was not evaluated."""
        metrics: Mapping[str, float] = self.facts.get("metrics", {})
        return metrics

    def _fact(self, name: str) -> Any:
        if name not in self.facts:
            raise AttributeError(f"an event {self.kind!r} has no {name}")
        return self.facts[name]

    def to_json(self) -> dict[str, Any]:
        """Return the entries of the line, without its checksum."""
        plain = {"time": self.time, "event": self.kind, LEVEL: self.level, **self.facts}
        return {name: value for name, value in plain.items() if value is not None or name in self.facts}

    @classmethod
    def from_json(cls, plain: Any) -> Event:
        """Return the event of such entries.

        Raises:
            BadRecord: the entries are no event.
        """
        if not isinstance(plain, dict) or not isinstance(plain.get("event"), str):
            raise BadRecord("it is no event")
        facts = {name: value for name, value in plain.items() if name not in ("event", "time", LEVEL, CHECKSUM)}
        for name, types in ENTRY_TYPES.items():
            if name in facts and type(facts[name]) not in types:
                raise BadRecord(f"entry {name} of an event has another type")
        time = plain.get("time")
        level = plain.get(LEVEL)
        if type(time) not in (int, float, type(None)) or not isinstance(level, str | None):
            raise BadRecord("the time or level of an event has another type")
        return cls(plain["event"], facts, time, level)


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
            remaining = _listeners.pop(run, [])
            for listener in added:
                remaining.remove(listener)
            if remaining:
                _listeners[run] = remaining


def tell_listeners(run: Path, event: Event) -> None:
    """Call those who listen to a run."""
    with _lock:
        listeners = list(_listeners.get(run, []))
    for listener in listeners:
        listener(event)


def is_warning(event: Event) -> bool:
    """Return whether a user must see the event; those that version 0.1.0 wrote are known by their kind."""
    return event.level == WARNING or event.kind in WARNINGS


def words_of(event: Event) -> str:
    """Return what an event says, in words."""
    return str(event.facts.get("message", event.kind))


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
    plain = event.to_json()
    return json.dumps({**plain, CHECKSUM: checksum(plain)}) + "\n"


def checksum(plain: dict[str, Any]) -> int:
    """Return the CRC-32 of the entries of a line, whatever their order."""
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())


def read_line(line: bytes) -> Event | None:
    """Return the event of a line; None where it holds none, or was changed since it was written."""
    try:
        plain = json.loads(line)
        event = Event.from_json(plain)
    except (ValueError, RecursionError):  # BadRecord is a ValueError
        return None
    expected = plain.pop(CHECKSUM, None)
    if expected is not None and expected != checksum(plain):
        return None
    return event
