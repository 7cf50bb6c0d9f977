"""A site's own rules: its policy, its ledger, what it has approved, and the log of what left it.

HOME/site/
  policy.yaml                what a lead may ask
  approved/RUN               digest of the settings with which a run may go on
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
from shoal.engine.sites.policy import Asked, Policy, forbidden, forbidden_of_run, forbidden_of_sum, read_policy
from shoal.engine.sites.rules import Rules
from shoal.engine.sites.transport import SiteRefusal
from shoal.engine.store.codec import PRIVATE, write_atomic

DELTA = 1e-5
"""The delta of the policy's epsilon."""
ROUNDS = ("train", "number")
"""What counts for `rounds_a_day`."""
BY_POLICY = "its policy forbids it by"


class OwnRules(Rules):
    """The rules of a site.

    Args:
        folder: of its rules.
        intake: appends to a set, given its name, what is new in a folder.
    """

    def __init__(self, folder: Path, intake: Callable[[str, str], object] = lambda name, place: None) -> None:
        self.folder = folder
        self.intake = intake
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
    def least_group(self) -> int:  # type: ignore[override]
        """See `Rules`."""
        return self.policy.min_group

    @property
    def mask_key(self) -> str:  # type: ignore[override]
        """See `Rules`."""
        return secret_key(self.folder, 0).hex()

    @property
    def public_key(self) -> str:
        """What other sites put into their policies."""
        return public_key(self.folder, 0)

    def refusal(self, call: SiteCall, settings: Settings | None, samples: int | None) -> str | None:
        """See `Rules`."""
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
            asked = chain(asked, forbidden_of_sum(policy, plan_of(call), self.public_key))
        if call.do in ROUNDS:
            asked = chain(asked, self.too_many(policy, call))
        for key, what in asked:
            return f"{BY_POLICY} `{key}`: the lead asks for {what}"
        if settings is not None and policy.approve == "ask" and not self.is_approved(call.run, settings):
            return f"these settings wait for `shoal site approve {call.run or 'RUN'}` there"
        return None

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
        """Return whether a run was approved with these settings."""
        path = self.approval(run)
        return path.exists() and path.read_text() == settings.digest()

    def spend(self, call: SiteCall, settings: Settings, clients: Sequence[int]) -> None:
        """See `Rules`."""
        if not settings.privacy.secret:
            return
        with SetLedger.from_settings(settings.data).changing() as runs:
            ledger = runs.setdefault(call.run, Ledger(settings.privacy.noise, settings.aggregation.is_mean))
            ledger.ask(clients)
            spent = total(list(runs.values()), DELTA).sent
            if spent > (self.policy.epsilon or math.inf):
                raise SiteRefusal(f"{BY_POLICY} `epsilon`: the lead asks for updates that bring it to {spent:.3g}")

    def take_in(self, name: str) -> None:
        """See `Rules`."""
        if place := self.policy.watch.get(name):
            self.intake(name, place)

    def leave(self, call: SiteCall | None, answer: bytes) -> None:
        """See `Rules`."""
        line = self.log.append(call, self.methods.get(call.run, "") if call is not None else "", answer)
        if has_trained(line):
            self.trained.add((line["run"], line["round"]))


def has_trained(line: Mapping[str, Any]) -> bool:
    """Return whether a line of the log is of a round in which the site trained."""
    return line["do"] in ROUNDS and line["refused"] is None
