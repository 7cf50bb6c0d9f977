"""`python -m tests.chaos --clusters`: tries on clusters whose parts die, and their table in results/chaos."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
import time
import traceback
from pathlib import Path

from tests.chaos.cluster_events import EVENTS
from tests.chaos.cluster_tally import ClusterOutcome, markdown, write
from tests.chaos.cluster_trial import TIMEOUT_MINUTES, Clusters, ClusterTrial, clusters_in


def planned(count: int, seed: int) -> list[tuple[str, str]]:
    """Event and runner of every try, by their shares, in a random order."""
    shares = [what for what, (share, _) in EVENTS.items() for _ in range(share)]
    draw = random.Random(seed)
    found: list[tuple[str, str]] = []
    while len(found) < count:
        found += draw.sample(shares, len(shares))
    return found[:count]


def attempt(clusters: Clusters, number: int, event: str, runner: str) -> ClusterOutcome:
    """One try; a mistake of ours counts as wrong too."""
    trial = None
    try:
        trial = ClusterTrial(clusters, runner, event, number, random.Random(f"{clusters.seed} {number}"))
        outcome = trial.execute(EVENTS[event, runner][1])
    except Exception:
        note = traceback.format_exc()[-1500:]
        outcome = ClusterOutcome(
            event, runner, trial.method if trial else "", "", 0.0, "not carried out", False, note=note
        )
    finally:
        if trial is not None:
            trial.close()
    if outcome.right and trial is not None:
        shutil.rmtree(trial.place, ignore_errors=True)
        shutil.rmtree(trial.run.path, ignore_errors=True)
    return outcome


def on_clusters(count: int, seed: int, out: Path, events: list[str], minutes: float) -> None:
    """Carry out what the command line asks for; exit code 1 where anything was wrong.

    Args:
        count: tries.
        seed: of events, methods and moments.
        out: folder of the table.
        events: only tries of these, such as "scheduler killed"; empty: of all.
        minutes: no try begins after so many.
    """
    began, outcomes = time.monotonic(), list[ClusterOutcome]()
    folder = tempfile.mkdtemp(prefix="shoal-clusters-")
    with contextlib.chdir(folder):
        os.environ["SHOAL_HOME"] = str(Path(folder) / "driver")
        for name in ("SHOAL_DATA_MIRROR", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
            os.environ.pop(name, None)
        with clusters_in(Path(folder), seed) as clusters:
            for number, (event, runner) in enumerate(planned(count, seed), 1):
                if (events and event not in events) or time.monotonic() - began > minutes * 60:
                    continue
                outcome = attempt(clusters, number, event, runner)
                outcomes.append(outcome)
                word = "as it must be" if outcome.right else f"WRONG ({outcome.note})"
                about = f"{runner:5} {event}, {outcome.moment}: {outcome.seconds:.0f} s, {outcome.ended}"
                print(f"{number:3} {time.monotonic() - began:6.0f} s  {about}: {word}", flush=True)
                write(outcomes, out, seed, time.monotonic() - began, {"timeout": TIMEOUT_MINUTES})
    print(markdown(outcomes))
    if not all(outcome.right for outcome in outcomes):
        raise SystemExit(1)
    shutil.rmtree(folder, ignore_errors=True)
