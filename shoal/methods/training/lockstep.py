"""Several calls that go on side by side from one meeting place to the next, one running at a time.

Each call has a thread of its own, and hands the turn to the next one where it meets the others, so that the order of
all work is always the same, and no more cores are used than by one call after another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class _Stopped(Exception):
    """Another call failed: this one need not go on."""


class Lockstep:
    """Calls that meet.

    Args:
        count: number of calls.
    """

    def __init__(self, count: int) -> None:
        self._turns = [threading.Semaphore(0) for _ in range(count)]
        self._under_way = [True] * count
        self._met = [0] * count
        self._held = 0
        self._error: BaseException | None = None
        self._mine = threading.local()

    def run(self, calls: Sequence[Callable[[], object]]) -> None:
        """Make the calls and return when all have ended.

        Raises:
            BaseException: the first that a call raised; the others have ended, too.
        """
        threads = [threading.Thread(target=self._run, args=(number, call)) for number, call in enumerate(calls)]
        for thread in threads:
            thread.start()
        try:
            self._turns[0].release()
            for thread in threads:
                thread.join()
        except BaseException as error:  # the user has interrupted
            self._error = error
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error

    def meet(self, at_last: Callable[[], None]) -> None:
        """Wait in a call until all calls under way have come here.

        Args:
            at_last: done once, when all have come and before any of them goes on.
        """
        number: int = self._mine.number
        self._met[number] += 1
        self._hand_on(number)
        self._wait(number)
        if self._held < self._met[number]:
            self._held = self._met[number]
            at_last()

    def _run(self, number: int, call: Callable[[], object]) -> None:
        self._mine.number = number
        try:
            self._wait(number)
            call()
        except _Stopped:
            pass
        except BaseException as error:
            self._error = self._error or error
        finally:
            self._under_way[number] = False
            self._hand_on(number)

    def _hand_on(self, number: int) -> None:
        count = len(self._turns)
        for step in range(1, count + 1):
            after = (number + step) % count
            if self._under_way[after]:
                self._turns[after].release()
                return

    def _wait(self, number: int) -> None:
        self._turns[number].acquire()
        if self._error is not None:
            raise _Stopped
