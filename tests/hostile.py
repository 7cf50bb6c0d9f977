"""One hostile client among honest ones, in every method: what becomes of its answers, and of the run.

    python -m tests.hostile [--case fedavg --case cfl] [--update NaN --update "count 0"] [--json FILE]

In every round the client's honest answer is made wrong in one way (`tests.hostile_updates`), before its worker
looks at it, and once more in the file on its way to the server. A run goes to its end with all rounds, each evaluated;
probes, which belong to a last evaluation and look at the same state for much longer, are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from shoal.core.digests import file_digest
from shoal.core.errors import ShoalError
from shoal.core.records import record_to_json
from shoal.engine.messages.wire import Answer, Evaluate, Request, Train, TrainAnswer
from shoal.engine.rounds import client_history
from shoal.engine.rounds.loop import Engine
from shoal.engine.rounds.runner import ThreadRunner
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.store.codec import load_message, load_server, save_message, write_json
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FINISHED
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.base import Client, Message, Update
from shoal.methods.registry import BUILT_IN as METHODS
from tests.hostile_updates import BY_FILE, SPOILT, Spoil

BAD = 2
"""The hostile client of five."""
Side = Literal["worker", "server"]
Outcome = Literal["refused", "accepted", "ended", "not of it"]
"""Left out of every round by name; averaged in at least once; the run stopped; nothing of the kind to make wrong."""

BASE: dict[str, Any] = {
    "data": {"name": "digits", "limit": 120},
    "partition": {"kind": "iid", "clients": 5},
    "model": {"encoder": "tiny-conv"},
    "local": {"epochs": 1, "batch": 16},
    "augment": {"recipe": "digits"},
    "rounds": 2,
    "participation": {"retries": 0},
    "workers": {"device": "cpu", "precision": "fp32", "slots": 1},
    "tracking": {"mlflow": False, "prefect": "off"},
}
HELD_OUT = {"kind": "iid", "clients": 5, "validation": 0.3}
POINTS = {"name": "gaussian", "limit": None, "options": {"samples": 60, "clusters": 3}}
MAJORITY = {"kind": "majority", "p": 0.5, "clients": 5}
FLOWS = {"name": "uifca", "cluster_rounds": 2, "comm_rounds": 2, "steps": 3}
EXCHANGE = {"name": "cfcl", "steps": 4, "tau_a": 2, "tau_p": 2, "reserve": 4, "budget": 3}
ROBUST = {
    "data": {"name": "gaussian", "limit": None, "options": {"samples": 300, "clusters": 3}},
    "aggregation": {"rule": "median"},
    "rounds": 30,
}
"""Cases in which the clusters of the others must stay, whatever one client says."""
LEAST_ARI = 0.95
"""Of the others' clusters with those of an honest run."""
CASES: dict[str, dict[str, Any]] = {
    "fedcc": {"method": {"name": "fedcc"}},
    "cfcl": {"method": EXCHANGE, "model": {"encoder": "pooled-conv"}, "rounds": 50},
    "fedsimclr_kmeans": {"method": {"name": "fedsimclr_kmeans", "kmeans_rounds": 3, "starts": 2}, "rounds": 4},
    "cfl": {"method": {"name": "cfl", "criterion": "schedule", "schedule": [1], "gamma_max": 0.0}},
    "uifca": {"method": FLOWS, "data": POINTS, "partition": MAJORITY, "rounds": 4},
    "uifca, from k-FED": {
        "method": {**FLOWS, "init": "kfed"},
        "data": POINTS,
        "partition": MAJORITY,
        "rounds": 5,
    },
    "ifca_flows": {"method": {"name": "ifca_flows", "steps": 3}, "data": POINTS, "partition": MAJORITY},
    "kfed": {"method": {"name": "kfed"}, "data": POINTS, "partition": MAJORITY},
    "fedkmeans": {"method": {"name": "fedkmeans", "standardise": True}, "data": POINTS, "rounds": 4},
    "fedkmeans, landmarks": {
        "method": {"name": "fedkmeans", "landmarks": 30, "standardise": True},
        "data": POINTS,
        "rounds": 8,
    },
    "fedgmm": {"method": {"name": "fedgmm"}, "data": POINTS, "rounds": 18},
    "fedkmeans, median": {"method": {"name": "fedkmeans", "standardise": True}, **ROBUST},
    "fedkmeans, landmarks, median": {"method": {"name": "fedkmeans", "landmarks": 30, "standardise": True}, **ROBUST},
    "clustergan": {"method": {"name": "clustergan", "steps": 1, "critic_steps": 1, "width": 4}},
    "ifca": {"method": {"name": "ifca", "models": 2}},
}
"""What a case changes of `BASE`; every other method runs with its defaults."""


def cases() -> dict[str, dict[str, Any]]:
    """Every registered method, and a few in other phases or with other messages."""
    missing = METHODS.keys() - {case["method"]["name"] for case in CASES.values()}
    return {name: {"method": {"name": name}} for name in sorted(missing)} | CASES


def settings_of(case: dict[str, Any]) -> Settings:
    """The settings of a case."""
    kind = METHODS[case["method"]["name"]]
    parts = {"partition": HELD_OUT} if kind.learns_from_labels else {}
    changed = {**parts, **case}
    base = {**BASE, **{key: changed.pop(key) for key in ("method", "partition", "data") if key in changed}}
    return make_settings(merge(base, changed))


@dataclass
class HostileWorker:
    """A worker on which one client's answers are made wrong, or whose files are, once they are written.

    Args:
        client: its id.
        spoil: what becomes of its answers.
        side: who sees them first.
    """

    client: int
    spoil: Spoil
    side: Side
    touched: int = 0

    def __post_init__(self) -> None:
        self._worker = _Spoiling(self) if self.side == "worker" else Worker()

    def handle(self, request: Request) -> Answer:
        """As of `Worker`."""
        if isinstance(request, Evaluate):
            request = replace(request, final=False)
        answer = self._worker.handle(request)
        if self.side == "server" and isinstance(request, Train) and isinstance(answer, TrainAnswer):
            done = answer.clients.get(self.client)
            if isinstance(done, FinishedWork):
                return TrainAnswer({**answer.clients, self.client: self._written_over(request, done)})
        return answer

    def spoilt(self, update: Update) -> Update:
        """An update made wrong."""
        own = replace(update, client=self.client)
        spoilt = self.spoil(own)
        self.touched += spoilt is not own
        return spoilt

    def _written_over(self, request: Train, done: FinishedWork) -> FinishedWork:
        """The client's message in its file, changed behind the back of the worker, its digest too."""
        paths = RoundPaths(request.run, request.round)
        path = paths.work / done.update
        before = Update(load_message(path))
        after = self.spoilt(before)
        if after.message is before.message:
            return done
        save_message(path, after.message)
        done = replace(done, sha256={**done.sha256, done.update: file_digest(path)})
        write_json(paths.done(self.client), record_to_json(done))
        return done


class _Spoiling(Worker):
    """A worker whose method answers wrongly for one client."""

    def __init__(self, hostile: HostileWorker) -> None:
        super().__init__()
        self._hostile = hostile
        self._opening = threading.Lock()

    def opened(self, path: Path) -> OpenedRun:
        with self._opening:  # no thread may work with a run whose method is still honest
            known = self._opened
            opened = super().opened(path)
            if opened is not known:
                honest = opened.method.client_update

                def client_update(message: Message, client: Client) -> Update:
                    update = honest(message, client)
                    return self._hostile.spoilt(update) if client.id == self._hostile.client else update

                opened.method.client_update = client_update  # type: ignore[method-assign]
            return opened


@dataclass(frozen=True)
class Found:
    """What became of a hostile client's answers, in a word and in a sentence."""

    outcome: Outcome
    message: str = ""
    others: tuple[int, ...] = ()
    ari: float | None = None


def attack(case: dict[str, Any], spoil: Spoil, side: Side) -> Found:
    """Run a case with one hostile client to its end; a method of one client with that one hostile.

    Args:
        case: of `cases`.
        spoil: what the client makes of its answers.
        side: who sees them first.
    """
    settings = settings_of(case)
    bad = 0 if METHODS[settings.method.name].pooled else BAD
    hostile = HostileWorker(bad, spoil, side)
    run = new_run(settings)
    try:
        with patch.object(client_history, "MAX_REFUSALS", sys.maxsize):  # the client is to attack in every round
            go_on(run, hostile)
    except ShoalError as error:
        return Found("ended", str(error))
    except Exception as error:  # whatever a hostile client brings about is what is looked for
        return Found("ended", f"{type(error).__name__}: {error}")
    assert run.status().state == FINISHED
    refused = [event for event in run.events() if event.kind == "client_refused"]
    others = tuple(sorted({e.client for e in run.events() if e.kind.startswith("client_refus")} - {bad}))
    if not hostile.touched:
        return Found("not of it")
    ari = None
    if "aggregation" in case:
        ari = adjusted_rand_score(honest_clusters(json.dumps(case)), clusters_of_others(run, bad))
    own = [event for event in refused if event.client == bad]
    if own and all(f"client {bad} " in event.message for event in own):
        # What has nothing to make wrong in some rounds is rightly taken in those.
        return Found("refused" if len(own) >= hostile.touched else "accepted", own[-1].message, others, ari)
    return Found("accepted", others=others, ari=ari)


@functools.cache
def honest_clusters(case: str) -> np.ndarray:
    """The clusters of all but the hostile client's samples where it is honest, by the case as JSON."""
    run = new_run(settings_of(json.loads(case)))
    go_on(run, Worker())
    return clusters_of_others(run, BAD)


def clusters_of_others(run: RunFolder, client: int) -> np.ndarray:
    """The clusters of the samples of all other clients, by the last state."""
    opened = OpenedRun(run)
    predict = opened.method.predictor(load_server(RoundPaths(run.path, run.status().round).server))
    samples = [opened.samples(other) for other in range(opened.partition.clients) if other != client]
    return np.concatenate([predict(of.x(torch.arange(len(of)))).cluster.numpy() for of in samples])


def go_on(run: RunFolder, worker: HostileWorker | Worker) -> None:
    """What is left of a run, on one worker in this process."""
    runner = ThreadRunner(2)
    try:
        Engine(run, worker.handle, runner).run_to_end()
    finally:
        runner.close()


def sides(update: str) -> Sequence[Side]:
    """Where an answer can be made wrong."""
    return ("worker", "server") if update in BY_FILE else ("worker",)


@contextlib.contextmanager
def own_home() -> Iterator[Path]:
    """A home folder of its own, as long as this lasts."""
    before = os.environ.get("SHOAL_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHOAL_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ["SHOAL_HOME"]
            if before is not None:
                os.environ["SHOAL_HOME"] = before


def table(rows: list[dict[str, Any]]) -> str:
    """Counts of outcomes by case, in Markdown; and what was accepted or ended a run, by name."""
    lines = ["| method | refused | accepted | ended by one client | stopped, of one client |", "|---|---|---|---|---|"]
    whole: Counter[str] = Counter()
    for case in dict.fromkeys(row["case"] for row in rows):
        counts = Counter(_column(row) for row in rows if row["case"] == case)
        whole += counts
        lines.append(f"| {case} | " + " | ".join(str(counts[c]) for c in COLUMNS) + " |")
    lines.append("| **all** | " + " | ".join(f"**{whole[c]}**" for c in COLUMNS) + " |")
    odd = [row for row in rows if _column(row) in ("accepted", "ended") or row["others"] or row["ari"] is not None]
    lines += [
        "",
        *(
            f"- {r['case']}, {r['update']}, seen first by the {r['side']}: {_column(r)} {r['message']}{_kept(r)}"
            for r in odd
        ),
    ]
    return "\n".join(lines)


COLUMNS = ("refused", "accepted", "ended", "alone")


def _kept(row: dict[str, Any]) -> str:
    return "" if row["ari"] is None else f" (ARI of the others' clusters {row['ari']:.2f})"


def _column(row: dict[str, Any]) -> str:
    return "alone" if row["outcome"] == "ended" and row["pooled"] else str(row["outcome"])


def attacks(name: str, case: dict[str, Any], updates: Sequence[str] | None) -> list[dict[str, Any]]:
    """Attack a case in every way, and return a row for each attack that touched an answer.

    Args:
        name: name of the case.
        case: of `cases`.
        updates: names of `SPOILT` to try; None tries all.
    """
    pooled = METHODS[case["method"]["name"]].pooled
    rows = []
    for update, spoil in SPOILT.items():
        if updates and update not in updates:
            continue
        for side in sides(update):
            found = attack(case, spoil, side)
            if found.outcome != "not of it":
                rows.append({"case": name, "update": update, "side": side, "pooled": pooled, **vars(found)})
    return rows


def main(arguments: Sequence[str]) -> None:
    """Attack every method in every way, and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", help="only this case; repeatable")
    parser.add_argument("--update", action="append", help="only this update; repeatable")
    parser.add_argument("--json", type=Path, help="where to write the outcomes")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    with own_home():
        for name, case in cases().items():
            if given.case and name not in given.case:
                continue
            began = time.monotonic()
            rows += attacks(name, case, given.update)
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
            if given.json:
                given.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))
    moved = [row for row in rows if row["ari"] is not None and row["ari"] < LEAST_ARI]
    if moved or any(_column(row) == "ended" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
