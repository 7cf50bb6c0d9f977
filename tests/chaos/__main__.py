"""`python -m tests.chaos --count 300`: tries over every registered method, and their table in results/chaos.

With --damage: damaged files of finished runs, for every reader (`tests.chaos.damage`).
With --clusters: tries on clusters of Dask whose parts die (`tests.chaos.on_clusters`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.chaos.damage import REFUSED, SAME, Ground, table
from tests.chaos.damage import tries as damage_tries
from tests.chaos.damage import write as write_damage
from tests.chaos.damage_readers import READERS
from tests.chaos.events import EVENTS
from tests.chaos.nights import nights, planned_nights
from tests.chaos.on_clusters import on_clusters
from tests.chaos.own_sets import own_sets, planned_sets
from tests.chaos.tally import Outcome, markdown, write
from tests.chaos.trial import Chaos, Trial, chaos_in, methods


def planned(count: int, seed: int, among: list[str]) -> list[tuple[str, str]]:
    """Event and method of every try: events by their shares, methods in turn, both in a random order."""
    shares = [(event, share * count / 100) for event, (share, _) in EVENTS.items()]
    events = [event for event, share in shares for _ in range(int(share))]
    rest = sorted((event for event, _ in shares), key=lambda event: int(dict(shares)[event]) - dict(shares)[event])
    events = (events + rest * count)[:count]
    draw = random.Random(seed)
    draw.shuffle(events)
    turn = draw.sample(among, len(among))
    return [(event, turn[number % len(turn)]) for number, event in enumerate(events)]


def attempt(chaos: Chaos, number: int, event: str, method: str) -> Outcome:
    """One try; a mistake of ours counts as wrong too."""
    trial = Trial(chaos, method, random.Random(f"{chaos.seed} {number}"))
    try:
        same = EVENTS[event][1](trial)
    except Exception:
        trial.notes.append(traceback.format_exc()[-1500:])
        same = False
    outcome = trial.outcome(event, same)
    chaos.nursery.clear()
    if outcome.same:
        shutil.rmtree(trial.folder.path, ignore_errors=True)
    return outcome


def damage(count: int, seed: int, out: Path, readers: list[str], minutes: float) -> None:
    """Tries with damaged files of finished runs and own sets; exit code 1 where an answer was wrong or unclear."""
    with tempfile.TemporaryDirectory(prefix="shoal-damage-") as folder:
        os.environ["SHOAL_HOME"] = str(Path(folder).resolve() / "home")
        for name in ("SHOAL_DATA_MIRROR", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
            os.environ.pop(name, None)
        found = damage_tries(Ground(Path(folder).resolve()), count, seed, readers, minutes)
    write_damage(found, out)
    print(table(found))
    if any(each.outcome not in (SAME, REFUSED) for each in found):
        raise SystemExit(1)


def tries(folder: Path, given: argparse.Namespace) -> Iterator[Outcome]:
    """All tries, one after the other: those on sets of the user's own, those on whole nights, and those on runs."""
    count = 300 if given.count is None else given.count
    sets = planned_sets(count // 3 if given.sets is None else given.sets, given.seed)
    yield from own_sets(folder / "own-sets", [event for event in sets if event in (given.events or sets)], given.seed)
    whole = planned_nights(count // 7 if given.nights is None else given.nights, given.seed)
    yield from nights(folder / "nights", [event for event in whole if event in (given.events or whole)], given.seed)
    if not count:
        return
    with chaos_in(folder, given.seed) as chaos:
        for number, (event, method) in enumerate(planned(count, given.seed, given.methods), 1):
            if event in (given.events or EVENTS):
                yield attempt(chaos, number, event, method)


def main() -> None:
    """Carry out what the command line asks for; exit code 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--clusters", action="store_true", help="on clusters whose parts die")
    parser.add_argument("--damage", action="store_true", help="damaged files of finished runs, for every reader")
    parser.add_argument("--readers", nargs="*", default=list(READERS), help="with --damage: only these")
    parser.add_argument("--count", type=int, help="tries on runs; by default 300, on clusters 20")
    parser.add_argument("--sets", type=int, help="tries on sets of the user's own; by default a third of --count")
    parser.add_argument("--nights", type=int, help="tries on whole nights; by default a seventh of --count")
    parser.add_argument("--seed", type=int, default=0, help="of events, methods and moments")
    parser.add_argument("--out", type=Path, default=Path("results/chaos"), help="folder of the table")
    parser.add_argument("--methods", nargs="*", default=methods(), help="only these")
    parser.add_argument("--events", nargs="*", default=[], help="only tries of these")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no try after so many")
    given = parser.parse_args()
    torch.set_num_threads(1)
    out, began = given.out.resolve(), time.monotonic()
    if given.damage:
        damage(given.count or 300, given.seed, out, given.readers, given.minutes)
        return
    if given.clusters:
        on_clusters(given.count or 20, given.seed, out, given.events, given.minutes)
        return
    with tempfile.TemporaryDirectory(prefix="shoal-chaos-") as folder, contextlib.chdir(folder):
        os.environ["SHOAL_HOME"] = folder
        for name in ("SHOAL_DATA_MIRROR", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
            os.environ.pop(name, None)
        outcomes = []
        for outcome in tries(Path(folder), given):
            outcomes.append(outcome)
            word = "right" if outcome.same else f"WRONG ({outcome.note})"
            line = f"{len(outcomes):4} {time.monotonic() - began:6.0f} s  {outcome.method:18} {outcome.event}: {word}"
            print(line, flush=True)
            write(outcomes, out, given.seed, time.monotonic() - began)
            if time.monotonic() - began > given.minutes * 60:
                break
    print(markdown(outcomes))
    if any(not outcome.same or outcome.traceback for outcome in outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
