"""Progress below a notebook's cell: one line of HTML that is replaced, which every notebook can show.

It needs the kernel only, and no widgets, which not every front end has.
"""

from __future__ import annotations

import contextlib
import html
import sys
import time

from shoal.engine.store.run_events import Event

UPDATE_SECONDS = 0.2
"""Least time between two changes of the line."""


def in_kernel() -> bool:
    """Return whether this process is a notebook's kernel (IPython that shows more than text)."""
    shell = sys.modules.get("IPython")
    if shell is None or not hasattr(shell, "get_ipython"):
        return False
    return getattr(shell.get_ipython(), "kernel", None) is not None


class KernelBar:
    """A bar with words before and behind it.

    Args:
        label: the words before it.
    """

    def __init__(self, label: str) -> None:
        from IPython.display import HTML, display

        self._html = HTML
        self.label = label
        self.note = ""
        self.lines = ""
        self.done = 0.0
        self.total = 0.0
        self._round = 0
        self._clients = 1
        self._clients_done = 0
        self._began = self._shown = time.monotonic()
        self._handle = display(HTML(self.text()), display_id=True)

    def text(self) -> str:
        """Return the line as HTML."""
        share = f"{int(self.done)}/{int(self.total)}" if self.total else ""
        seconds = time.monotonic() - self._began
        bar = f"<progress value='{self.done}' max='{self.total or 1}' style='width:14em'></progress>"
        note = html.escape(self.note)
        return f"{html.escape(self.label)} {bar} {share} {note} <small>{seconds:.0f} s</small>{self.lines}"

    def show(self, *, now: bool = False) -> None:
        """Replace the line, unless that was done a moment ago."""
        if now or time.monotonic() - self._shown >= UPDATE_SECONDS:
            self._shown = time.monotonic()
            if self._handle is not None:
                with contextlib.suppress(Exception):  # a front end that went away is no fault of the run
                    self._handle.update(self._html(self.text()))  # type: ignore[no-untyped-call]

    def warn(self, message: str) -> None:
        """Add a line below."""
        self.lines += f"<br><small>{html.escape(message)}</small>"
        self.show(now=True)

    def step(self, done: int, total: int) -> None:
        """Show how many steps of all are done."""
        self.done = done
        self.total = total
        self.show(now=done == total)

    def observe(self, event: Event, shown: dict[str, float], warning: str | None) -> None:
        """Follow a run.

        Args:
            event: of the engine.
            shown: the metrics of it to show.
            warning: what to warn of.
        """
        kind = event.kind
        if kind in ("started", "resumed"):
            self.total = event.rounds
            self.done = event.round
        elif kind == "round_started":
            self._round = event.round - 1
            self._clients = max(1, event.facts["clients"])
            self._clients_done = 0
        elif kind == "client_finished":
            self._clients_done += 1
            self.done = self._round + min(0.99, self._clients_done / self._clients)
        elif kind == "round_finished":
            self.done = event.round
            self.note = " ".join(f"{name} {value:.3f}" for name, value in shown.items())
        if warning:
            self.warn(warning)
        self.show(now=kind in ("started", "resumed", "round_finished"))
