"""What `shoal serve` checks again and again, on threads of its own."""

from __future__ import annotations

import threading

from shoal.core.errors import ShoalError
from shoal.serving.periodic import PeriodicCheck


def test_a_check_begins_at_once_and_goes_on_after_an_error() -> None:
    calls = 0
    twice = threading.Event()

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            twice.set()
        raise ShoalError("busy")

    often = PeriodicCheck(check, 0.01, "often")
    often.start()
    assert twice.wait(30)
    often.stop()
    rarely = PeriodicCheck(twice.clear, 3600, "rarely")
    rarely.start()
    for _ in range(300):
        if not twice.is_set():
            break
        threading.Event().wait(0.1)
    assert not twice.is_set()
    rarely.stop()
