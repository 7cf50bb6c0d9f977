"""The events of a run: lines of events.jsonl, each a sealed JSON object; and the observers of a run.

An event may come from any thread: of the engine, of the log to MLflow, of a figure. `observing` has the observers of a
run called with every event at once.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.seal import SEAL, sealed, unsealed

LEVEL = "level"
"""The entry of an event with its level; only warnings have one."""
WARNING = "warning"
WARNINGS = frozenset(
    {
        "budget_spent",
        "checkpoint_unreadable",
        "client_failed",
        "client_left_out",
        "client_quarantined",
        "client_refused",
        "drift",
        "manifest_unreadable",
        "mlflow_incomplete",
        "not_shown",
        "prefect_lost",
        "site_away",
        "slot_lost",
        "software_changed",
    }
)
"""Kinds of events that a user must see."""


@dataclass(frozen=True)
class Event:
    """An event of a run: a line of events.jsonl.

    Args:
        kind: what happened, such as round_finished; the entry `event` of the line.
        facts: further entries, by name, which depend on the kind. Those that several kinds have are properties too.
        time: in seconds since the epoch; None: unknown.
        level: `WARNING` if a user must see it.
    """

    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    time: float | None = None
    level: str | None = None

    @property
    def message(self) -> str:
        """A sentence about the event; empty if its kind is enough."""
        return str(self.facts.get("message", ""))

    @property
    def round(self) -> int:
        """The round in which, or after which, it happened."""
        return int(self._fact("round"))

    @property
    def rounds(self) -> int:
        """The planned number of rounds of the run."""
        return int(self._fact("rounds"))

    @property
    def client(self) -> int | str:
        """The id of a client, or its name in events about data."""
        client: int | str = self._fact("client")
        return client

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the new state, by name; empty if it was not evaluated."""
        metrics: Mapping[str, float] = self.facts.get("metrics", {})
        return metrics

    def _fact(self, name: str) -> Any:
        if name not in self.facts:
            raise AttributeError(f"an event {self.kind!r} has no {name}")
        return self.facts[name]

    def to_json(self) -> dict[str, Any]:
        """Return the entries of the line, without its seal."""
        entries = {"time": self.time, "event": self.kind, LEVEL: self.level, **self.facts}
        return {name: value for name, value in entries.items() if value is not None or name in self.facts}


Observer = Callable[[Event], None]
"""Is called with every event of a run."""

_observers: dict[Path, list[Observer]] = {}
_lock = threading.Lock()


@contextlib.contextmanager
def observing(run: Path, observers: Sequence[Observer]) -> Iterator[None]:
    """Have observers called with every event of a run that this process writes, from any thread.

    Args:
        run: the run's folder.
        observers: called in the thread of the event, to which their exceptions go.
    """
    added = list(observers)
    with _lock:
        _observers[run] = [*_observers.get(run, []), *added]
    try:
        yield
    finally:
        with _lock:
            remaining = _observers.pop(run, [])
            for observer in added:
                remaining.remove(observer)
            if remaining:
                _observers[run] = remaining


def tell_observers(run: Path, event: Event) -> None:
    """Call the observers of a run."""
    with _lock:
        observers = list(_observers.get(run, []))
    for observer in observers:
        observer(event)


def is_warning(event: Event) -> bool:
    """Return whether a user must see the event, by its level or its kind."""
    return event.level == WARNING or event.kind in WARNINGS


def line_of(event: Event) -> str:
    """Return an event as a line of events.jsonl."""
    return json.dumps(sealed(event.to_json())) + "\n"


def read_line(line: bytes) -> Event | None:
    """Return the event of a line; None if the line holds none, or was changed since it was written."""
    try:
        entries = json.loads(line)
        if SEAL not in entries:
            return None
        facts = unsealed(entries)
        return Event(facts.pop("event"), time=facts.pop("time", None), level=facts.pop(LEVEL, None), facts=facts)
    except (ValueError, TypeError, KeyError, RecursionError):  # BrokenSeal is a ValueError
        return None
