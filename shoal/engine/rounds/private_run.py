"""The private updates of one run: the ledger of the data set accounts for each before it is sent."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

from shoal.engine.rounds.ledger_completeness import IN_LEDGER, runs_that_know_more
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.rounds.privacy import Ledger
from shoal.engine.rounds.privacy_ledger import SetLedger, total
from shoal.engine.settings import places
from shoal.engine.store.codec import StoreError
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunError


class BudgetSpent(RunError):
    """The updates or the state would exceed the budget `privacy.epsilon` of a data set."""


class PrivateRun:
    """The privacy accounting of one run; a run without private updates accounts nothing.

    Args:
        facts: of the run.

    Attributes:
        privacy: its settings.
        ledger: the ledger of its data set.
        own: entry of this run in the ledger.
        others: entries of the other runs on the data set.
    """

    def __init__(self, facts: RunFacts) -> None:
        settings = facts.settings
        self.run = facts.run.name
        self.privacy = settings.privacy
        sizes = facts.federation.sizes
        # The noise that hides a row is the same for all clients.
        self.sizes = sizes if self.privacy.unit == "client" else (1,) * len(sizes)
        self.ledger = SetLedger.from_settings(settings.data)
        self.own = Ledger(self.privacy.noise, settings.aggregation.is_mean)
        self.others: list[Ledger] = []

    def resume(self) -> None:
        """Read the run's entry in the ledger, or begin one.

        Raises:
            StoreError: the ledger is damaged, or knows less than the runs beside it.
        """
        if not self.privacy.secret:
            return
        with self.ledger.changing() as runs:
            self._read(runs)
            lost = runs_that_know_more(self.ledger.name, runs, places.runs())
            if lost:
                raise StoreError(
                    f"the privacy ledger of data set {self.ledger.name!r}, {self.ledger.path}, lacks entries of run "
                    f"{lost[0]}: it was removed, or replaced by an older copy. Restore the newest copy from a backup: "
                    "without it no private run can begin or resume, since earlier losses are unknown"
                )
            runs[self.run] = self.own

    def ask(self, clients: Sequence[int]) -> None:
        """Account for the updates of clients before they are asked for them.

        Raises:
            BudgetSpent: the budget bounds messages, and they would exceed it. StoreError: the ledger cannot be used.
        """
        self._enter(lambda own: own.ask(clients), "sent", f"an update of {len(clients)} clients")

    def budget_spent(self, clients: Sequence[int]) -> bool:
        """Return whether one more round with these clients would exceed `privacy.epsilon`."""
        self._read(self.ledger.runs())
        after = self.own.after(clients, [self.sizes[client] for client in clients])
        return self._set_spent(after) > (self.privacy.epsilon or math.inf)

    def account(self, round: int, done: Mapping[int, FinishedWork]) -> dict[str, float]:
        """Account for a server state before it leaves the server, and return epsilon so far, as metrics.

        Args:
            round: round of the state.
            done: the work of the clients whose messages are in it.

        Raises:
            RoundFailed: so few clients answered that the state would exceed the budget.
            StoreError: the ledger cannot be used.
        """
        if self.privacy.clip is None:
            return {}
        clients = sorted(done)
        messages = "".join(done[client].sha256[done[client].update] for client in clients)
        name = f"{round:04d}-{hashlib.sha256(messages.encode()).hexdigest()[:16]}"
        sizes = [self.sizes[client] for client in clients]
        what = f"a state with the noise of {len(clients)} clients"
        try:
            self._enter(lambda own: own.release(name, sizes), "mean", what)
        except BudgetSpent as exceeded:
            raise RoundFailed(f"round {round}: {exceeded}, or when more clients can take part") from None
        spent = self.own.spent(self.privacy.delta)
        metrics = {"epsilon_sent": spent.sent, "epsilon_mean": spent.mean}
        if self.privacy.secret:
            whole = total([*self.others, self.own], self.privacy.delta)
            metrics |= {IN_LEDGER: whole.sent, "epsilon_set_mean": whole.mean}
        return metrics

    @property
    def budget_message(self) -> str:
        """Message of a run that ends before its last round, since its budget is spent."""
        limit = self.privacy.epsilon
        return f"the budget privacy.epsilon {limit} of data set {self.ledger.name!r} allows no further round"

    def _enter(self, enter: Callable[[Ledger], None], budget: str, what: str) -> None:
        """Change this run's entry, unless the new entry exceeds the budget."""
        if self.privacy.clip is None:
            return
        if not self.privacy.secret:
            enter(self.own)
            return
        with self.ledger.changing() as runs:
            self._read(runs)
            after = self.own.copy()
            enter(after)
            limit = self.privacy.epsilon
            if limit is not None and self.privacy.budget == budget and self._set_spent(after) > limit:
                raise BudgetSpent(
                    f"{what} would bring epsilon of data set {self.ledger.name!r} to {self._set_spent(after):.3g}, "
                    f"more than privacy.epsilon {limit:.3g} (privacy.budget is {budget}): resume the run; it ends "
                    "when the budget allows no further round"
                )
            self.own = after
            runs[self.run] = after

    def _set_spent(self, own: Ledger) -> float:
        whole = total([*self.others, own], self.privacy.delta)
        return float(getattr(whole, self.privacy.budget))

    def _read(self, runs: Mapping[str, Ledger]) -> None:
        """Set this run's entry and those of the other runs."""
        if self.run in runs:
            self.own = runs[self.run].copy()
        self.others = [ledger for name, ledger in runs.items() if name != self.run]
