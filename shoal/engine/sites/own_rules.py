"""A site's own rules: its policy, its ledger, what it has approved, and the log of what left it.

HOME/site/
  policy.yaml                what a lead may ask
  approved/RUN               digest of the settings with which a run may go on; of its null baseline by this digest
  forgotten/RUN              a run that is refused: which messages its masks have hidden is forgotten with it
  paused                     everything is refused while it is there
  keys/0                     secret key of the masks of all runs
  log.jsonl  log-end.json    what left
HOME/privacy/SET.json        the ledger: private updates of all runs on a set
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from shoal.core.durable import private_folder
from shoal.engine.messages.masks import public_key, secret_key
from shoal.engine.rounds.privacy import Ledger
from shoal.engine.rounds.privacy_ledger import SetLedger, total
from shoal.engine.settings.run_settings import Settings
from shoal.engine.sites.frames import SiteCall, plan_of
from shoal.engine.sites.log import SiteLog
from shoal.engine.sites.policy import AUTO, Asked, Policy, forbidden, forbidden_of_run, forbidden_of_sum, read_policy
from shoal.engine.sites.transport import SiteRefusal
from shoal.engine.store.codec import PRIVATE, write_atomic

DELTA = 1e-5
"""The delta of the policy's epsilon."""
BY_POLICY = "its policy forbids it"
WAITS = "waits for `shoal site approve"
RESUME = "resume it at the lead (`shoal run --resume latest`)"


class OwnRules:
    """The rules of a site.

    Args:
        folder: of its rules.
        intake: appends to a set, given its name, what is new in a folder.
        tell: hears each refusal.
    """

    def __init__(
        self,
        folder: Path,
        intake: Callable[[str, str], object] = lambda name, place: None,
        tell: Callable[[str], object] = lambda refusal: None,
    ) -> None:
        self.folder = folder
        self.intake = intake
        self.tell = tell
        private_folder(folder)
        self.log = SiteLog(folder)
        self.methods: dict[str, str] = {}
        """The method of each run that was asked for since the agent began."""
        self.day = ""
        self.trained: set[tuple[str, int]] = set()
        """Runs and rounds in which the site trained on this day."""

    @property
    def policy(self) -> Policy:
        """The policy as it is now."""
        return read_policy(self.folder / "policy.yaml")

    @property
    def asks(self) -> bool:
        """Whether each run waits until the site's person has approved it."""
        return self.policy.approve == "ask"

    @property
    def least_group(self) -> int:
        """Least number of samples in a cell of a table that leaves the site."""
        return self.policy.min_group

    @property
    def tells_columns(self) -> bool:
        """Whether the site tells what `method.name: auto` asks about the columns of its set."""
        return AUTO in self.policy.methods

    @property
    def mask_key(self) -> str:
        """Secret key of the masks of the site's clients, in hex digits."""
        return secret_key(self.folder, 0).hex()

    @property
    def public_key(self) -> str:
        """What other sites put into their policies."""
        return public_key(self.folder, 0)

    def refusal(self, call: SiteCall, settings: Settings | None, samples: int | None) -> str | None:
        """Return why a request is refused; None: it is not.

        Args:
            call: the request.
            settings: of its run; None before there is one.
            samples: training samples of the site's smallest client in the run; None: there is no run.
        """
        if (self.folder / "paused").exists():
            return "it is paused"
        if call.run and self.forgotten(call.run).exists():
            return f"it has forgotten run {call.run}: start a new one"
        policy = self.policy
        asked = forbidden(policy, call)
        if settings is not None and samples is not None:
            self.methods[call.run] = settings.method.name
            asked = chain(asked, forbidden_of_run(policy, settings, samples))
        if call.do == "train":
            asked = chain(asked, forbidden_of_sum(policy, plan_of(call), self.public_key), self.too_many(policy, call))
        if reasons := [f"by `{key}`: the lead asks for {what}" for key, what in dict.fromkeys(asked)]:
            return f"{BY_POLICY} {'; '.join(reasons)}"
        return None

    def waits(self, run: str, settings: Settings) -> str | None:
        """Return that a run waits for the site's person to approve it; None: it does not."""
        if not self.asks or self.is_approved(run, settings):
            return None
        return f"run {run} {WAITS} {run[:8]}` there; then {RESUME}"

    def too_many(self, policy: Policy, call: SiteCall) -> Asked:
        """Yield the limit of rounds if the round of a request is one too many today."""
        today = datetime.now(UTC).date().isoformat()
        if self.day != today:
            self.day = today
            lines = [line for line in self.log.entries() if line["time"].startswith(today)]
            self.trained = {(line["run"], line["round"]) for line in lines if has_trained(line)}
        if len(self.trained | {(call.run, call.round)}) > policy.rounds_a_day:
            yield "rounds_a_day", "one round more today"

    def approval(self, run: str) -> Path:
        """Return the file that approves a run."""
        return self.folder / "approved" / run

    def forgotten(self, run: str) -> Path:
        """Return the file that says that a run was forgotten."""
        return self.folder / "forgotten" / run

    def approve(self, run: str, settings: Settings) -> None:
        """Let a run go on with these settings, as far as the policy allows it."""
        private_folder(self.approval(run).parent)
        write_atomic(self.approval(run), settings.digest().encode(), mode=PRIVATE)

    def is_approved(self, run: str, settings: Settings) -> bool:
        """Return whether a run was approved with these settings, or is the null baseline of one that was approved."""
        digest = settings.digest()
        path = self.approval(run)
        return self.approval(digest).exists() or (path.exists() and path.read_text() == digest)

    def waiting(self) -> list[str]:
        """Return the ids of runs that were refused since nobody has approved them, the oldest first."""
        last = {line["run"]: line["refused"] or "" for line in self.log.entries()}
        decided = {path.name for name in ("approved", "forgotten") for path in (self.folder / name).glob("*")}
        return [run for run, refused in last.items() if WAITS in refused and run not in decided]

    def spend(self, call: SiteCall, settings: Settings, clients: Sequence[int]) -> None:
        """Account for new private updates of clients before they are computed.

        Raises:
            SiteRefusal: they would exceed the site's budget.
        """
        if not settings.privacy.secret:
            return
        with SetLedger.from_settings(settings.data).changing() as runs:
            ledger = runs.setdefault(call.run, Ledger(settings.privacy.noise, settings.aggregation.is_mean))
            if ledger.noise != settings.privacy.noise:
                raise SiteRefusal(f"its ledger has the run with noise {ledger.noise:g}, not {settings.privacy.noise:g}")
            ledger.ask(clients)
            spent = total(list(runs.values()), DELTA).sent
            if spent > (self.policy.epsilon or math.inf):
                raise SiteRefusal(f"{BY_POLICY} by `epsilon`: the lead asks for updates that bring it to {spent:.3g}")

    def take_in(self, name: str) -> None:
        """Append to a set what is new of it, before the lead is told about it."""
        if place := self.policy.watch.get(name):
            self.intake(name, place)

    def leave(self, call: SiteCall | None, answer: bytes) -> None:
        """Record an answer that is about to leave.

        Args:
            call: the request; None: it could not be read.
            answer: all of its bytes.
        """
        line = self.log.append(call, self.methods.get(call.run, "") if call is not None else "", answer)
        if line["refused"]:
            self.tell(line["refused"])
        if has_trained(line):
            self.trained.add((line["run"], line["round"]))


def has_trained(line: Mapping[str, Any]) -> bool:
    """Return whether a line of the log is of a round in which the site trained."""
    return line["do"] == "train" and line["refused"] is None
