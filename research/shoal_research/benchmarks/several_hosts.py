"""What a round takes with each runner: processes here and Dask.

    python -m shoal_research.benchmarks.several_hosts --runs 3

Two slots on this machine, whichever runner has them, so that only the way differs: Dask's workers are those of a
cluster that is started for the run.
A round is counted from the end of the one before to its own end; rounds are the ones in the middle.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal_research.benchmarks.meter import wait_quiet
from shoal_research.benchmarks.peers import SOURCES, versions
from shoal_research.benchmarks.shoal_run import prepare_workload, settings_of
from shoal_research.benchmarks.workload import Workload

CASES = (
    ("8 clients of 1 epoch, 500 images", Workload(clients=8)),
    ("8 clients of 9 epochs, 500 images", Workload(clients=8, epochs=9)),
    ("8 clients of 1 epoch, 50 images, 1.66 million weights", Workload(clients=8, samples=50, encoder="mcmahan")),
)
"""What is measured, by name."""
RUNNERS = ("local", "dask")


def one(work: Workload, runner: str) -> tuple[list[float], str]:
    """Seconds of the rounds in the middle of one run, and the digest of its weights."""
    from shoal.engine.rounds.loop import Engine
    from shoal.engine.rounds.runner import ThreadRunner
    from shoal.engine.settings import places
    from shoal.engine.settings.run_settings import make_settings
    from shoal.engine.sites.pools import open_pool
    from shoal.lifecycle.starting import new_run

    settings: dict[str, Any] = settings_of(work, prepare_workload(work, places.store()), 2)
    settings["workers"] |= {"runner": runner, "slots": 2}
    settings["tracking"] = {"mlflow": False, "prefect": "off"}
    made = make_settings(settings)
    run = new_run(made)
    with open_pool(made.workers, "cpu") as pool:
        end = time.monotonic() + 60
        while pool.count < 2 and time.monotonic() < end:
            time.sleep(0.2)
        wait_quiet()
        runner_here = ThreadRunner(3)
        try:
            Engine(run, pool.call, runner_here, 2).run_to_end()
        finally:
            runner_here.close()
    ends = run.table("rounds")["finished_at"].tolist()[:-1]  # the last round is evaluated
    return [after - before for before, after in itertools.pairwise(ends)], run.status().weights_sha256


def main() -> None:
    """A table on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", type=int, nargs="+", default=list(range(len(CASES))), help="which of the workloads")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = SOURCES
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        os.environ["SHOAL_HOME"] = str(home)
        print("| workload | runner | s a round, median | least and most of the runs' medians | same bits |")
        print("|---|---|---|---|---|")
        for name, work in (CASES[number] for number in given.cases):
            bits: set[str] = set()
            for runner in RUNNERS:
                medians = []
                for _ in range(given.runs):
                    rounds, digest = one(replace(work, rounds=given.rounds), runner)
                    medians.append(statistics.median(rounds))
                    bits.add(digest)
                print(
                    f"| {name} | {runner} | {statistics.median(medians):.2f} | "
                    f"{min(medians):.2f} to {max(medians):.2f} | "
                    f"{'yes' if len(bits) == 1 else 'NO'} |",
                    flush=True,
                )
    print(json.dumps(versions(None)))


if __name__ == "__main__":
    main()
