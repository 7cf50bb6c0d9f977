"""The private updates of one run: what they tell is entered in the ledger of the data set before it is told."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.rounds.privacy import Ledger
from shoal.engine.rounds.privacy_ledger import SetLedger, total
from shoal.engine.settings.sections import PrivacySection
from shoal.engine.store.codec import StoreError
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.manifest import RoundRecord
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_folder import RunError

IN_LEDGER = "epsilon_set_sent"
"""The metric that tells of a round that it was entered in the ledger of the data set."""
NOT_SECRET = (
    "privacy.noise_source is seeded: the noise follows from the run's public seed and protects nothing; it is for "
    "tests that compare bits"
)


class BudgetSpent(RunError):
    """What is asked for would tell more of a data set than `privacy.epsilon` allows."""


@dataclass
class PrivateRun:
    """What one run tells of its clients; of a run without private updates nothing is said.

    Args:
        run: the run's name.
        privacy: of its settings.
        averaged: whether its server takes the plain weighted mean.
        sizes: how many samples each client has.
        ledger: of its data set.
    """

    run: str
    privacy: PrivacySection
    averaged: bool
    sizes: Sequence[int]
    ledger: SetLedger
    own: Ledger = field(init=False)
    past: Ledger = field(init=False)
    """What the manifests of closed rounds say."""
    others: list[Ledger] = field(default_factory=list)
    _accounted: bool = False

    def __post_init__(self) -> None:
        noise = self.privacy.noise if self.privacy.secret else 0.0  # noise that anybody can subtract is none
        self.own = Ledger(noise, self.privacy.delta, self.averaged)
        self.past = self.own.copy()

    @classmethod
    def from_opened(cls, opened: OpenedRun, *, kept: bool) -> PrivateRun:
        """The private updates of a run.

        Args:
            opened: the run.
            kept: whether the ledger is written; a rehearsal tells nobody anything.
        """
        settings = opened.settings
        averaged = settings.dataclass("aggregation").is_mean
        ledger = SetLedger.from_settings(settings.data, kept=kept)
        return cls(opened.run.name, settings.privacy, averaged, opened.federation.sizes, ledger)

    def read_back(self, record: RoundRecord) -> None:
        """Count a closed round of this run."""
        clients = [row.client for row in record.clients]
        self.past.add(clients, [self.sizes[client] for client in clients])
        self._accounted = self._accounted or IN_LEDGER in record.metrics

    def take_up(self) -> Iterator[tuple[str, str]]:
        """Take up the run's entry in the ledger; of a run that is older than the ledger its manifests become one.

        Yields:
            Kind and message of events that are to be told.

        Raises:
            StoreError: the ledger is damaged, or knows less than the run has told.
        """
        if self.privacy.clip is None:
            return
        if not self.privacy.secret:
            self.own = self.past
            if self.privacy.noise:
                yield "noise_not_secret", NOT_SECRET
            return
        with self.ledger.changing(self.privacy.delta) as runs:
            known = self.run in runs
            self._read(runs)
            short = known and any(self.own.asked[client] < count for client, count in self.past.asked.items())
            if short or (not known and self._accounted):
                raise StoreError(
                    f"the privacy ledger of data set {self.ledger.name!r}, {self.ledger.path}, knows less than run "
                    f"{self.run} has told: it was removed, or replaced by an older copy. Restore the newest one"
                )
            imported = not known and self.past.rho_sent > 0
            if imported:
                self.own = self.past
            runs[self.run] = self.own
        if imported:
            yield "privacy_accounted", f"the rounds so far are entered in {self.ledger.path.name}, which is newer"

    def ask(self, clients: Sequence[int]) -> None:
        """Account the updates that clients are going to be asked for.

        Raises:
            BudgetSpent: the budget is of messages, and does not allow it. StoreError: the ledger cannot be used.
        """
        self._enter(lambda own: own.ask(clients), "sent", f"asking {len(clients)} clients for an update")

    def budget_spent(self, clients: Sequence[int]) -> bool:
        """Whether one more round with these clients would tell more than `privacy.epsilon` allows."""
        self._read(self.ledger.runs(self.privacy.delta))
        after = self.own.after(clients, [self.sizes[client] for client in clients])
        return self._set_spent(after) > (self.privacy.epsilon or math.inf)

    def spent(self, round: int, done: Mapping[int, FinishedWork]) -> dict[str, float]:
        """Account a server state that nobody has seen yet, and return epsilon so far, as metrics.

        Args:
            round: of the state.
            done: the work of the clients whose messages are in it.

        Raises:
            BudgetSpent: the budget is of states, and does not allow it. StoreError: the ledger cannot be used.
        """
        if self.privacy.clip is None:
            return {}
        clients = sorted(done)
        messages = "".join(done[client].sha256[done[client].update] for client in clients)
        name = f"{round:04d}-{hashlib.sha256(messages.encode()).hexdigest()[:16]}"
        sizes = [self.sizes[client] for client in clients]
        self._enter(lambda own: own.release(name, sizes), "mean", f"a state with the noise of {len(clients)} clients")
        spent = self.own.spent()
        found = {"epsilon_sent": spent.sent, "epsilon_mean": spent.mean}
        if self.privacy.secret:
            whole = total([*self.others, self.own], self.privacy.delta)
            found |= {IN_LEDGER: whole.sent, "epsilon_set_mean": whole.mean}
        return found

    def account(self, round: int, done: Mapping[int, FinishedWork]) -> dict[str, float]:
        """Account a server state as `spent`, for the round loop.

        Raises:
            RoundFailed: so few clients answered that the state would tell more than the budget allows.
        """
        try:
            return self.spent(round, done)
        except BudgetSpent as spent:
            raise RoundFailed(f"round {round}: {spent}, or when more clients can take part") from None

    @property
    def why_no_round_more(self) -> str:
        """Why a run ends before its last round whose budget is spent."""
        limit = self.privacy.epsilon
        return f"the budget of privacy.epsilon {limit} of data set {self.ledger.name!r} allows no round more"

    def _enter(self, enter: Callable[[Ledger], None], budget: str, what: str) -> None:
        """Change this run's entry, if the budget allows what it is then."""
        if self.privacy.clip is None:
            return
        if not self.privacy.secret:
            enter(self.own)
            return
        with self.ledger.changing(self.privacy.delta) as runs:
            self._read(runs)
            after = self.own.copy()
            enter(after)
            limit = self.privacy.epsilon
            if limit is not None and self.privacy.budget == budget and self._set_spent(after) > limit:
                raise BudgetSpent(
                    f"{what} would bring epsilon of data set {self.ledger.name!r} to {self._set_spent(after):.3g}, "
                    f"more than privacy.epsilon {limit:.3g} (privacy.budget is {budget}): resume the run; it ends "
                    "where the budget allows no round more"
                )
            self.own = after
            runs[self.run] = after

    def _set_spent(self, own: Ledger) -> float:
        whole = total([*self.others, own], self.privacy.delta)
        return whole.sent if self.privacy.budget == "sent" else whole.mean

    def _read(self, runs: Mapping[str, Ledger]) -> None:
        """Take this run's entry and those of the others."""
        if self.run in runs:
            self.own = runs[self.run].copy()
        self.others = [ledger for name, ledger in runs.items() if name != self.run]
