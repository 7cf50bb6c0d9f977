"""Progress below a notebook's cell: one line of HTML that is replaced, which every notebook can show.

Nothing beside the kernel is needed: no widgets, whose front end is not everywhere.
"""

from __future__ import annotations

import contextlib
import html
import sys
import time

from shoal.engine.store.run_events import Event

EVERY = 0.2
"""Seconds between two changes of the line, at least."""


def in_kernel() -> bool:
    """Whether this process is a notebook's kernel (IPython that shows more than text)."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None and hasattr(shell, "get_ipython") else None
    return found is not None and getattr(found, "kernel", None) is not None


class KernelBar:
    """A bar with words before and behind it.

    Args:
        label: the words before it.
    """

    def __init__(self, label: str) -> None:
        from IPython.display import HTML, display

        self._html, self.label, self.note = HTML, label, ""
        self.done, self.total, self.lines = 0.0, 0.0, ""
        self._clients, self._of, self._round = 0, 1, 0
        self._began = self._shown = time.monotonic()
        self._handle = display(HTML(self.text()), display_id=True)

    def text(self) -> str:
        """The line as HTML."""
        share = f"{int(self.done)}/{int(self.total)}" if self.total else ""
        seconds = time.monotonic() - self._began
        bar = f"<progress value='{self.done}' max='{self.total or 1}' style='width:14em'></progress>"
        note = html.escape(self.note)
        return f"{html.escape(self.label)} {bar} {share} {note} <small>{seconds:.0f} s</small>{self.lines}"

    def show(self, *, now: bool = False) -> None:
        """Replace the line, unless that was done a moment ago."""
        if now or time.monotonic() - self._shown >= EVERY:
            self._shown = time.monotonic()
            if self._handle is not None:
                with contextlib.suppress(Exception):  # a front end that went away is no fault of the run
                    self._handle.update(self._html(self.text()))  # type: ignore[no-untyped-call]

    def warn(self, message: str) -> None:
        """Add a line below."""
        self.lines += f"<br><small>{html.escape(message)}</small>"
        self.show(now=True)

    def step(self, done: int, total: int) -> None:
        """So many steps of all are done."""
        self.done, self.total = done, total
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
            self.total, self.done = event.rounds, event.round
        elif kind == "round_started":
            self._round, self._clients, self._of = event.round - 1, 0, max(1, event.facts["clients"])
        elif kind == "client_finished":
            self._clients += 1
            self.done = self._round + min(0.99, self._clients / self._of)
        elif kind == "round_finished":
            self.done = event.round
            self.note = " ".join(f"{name} {value:.3f}" for name, value in shown.items())
        if warning:
            self.warn(warning)
        self.show(now=kind in ("started", "resumed", "round_finished"))
