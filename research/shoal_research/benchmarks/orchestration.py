"""What a run costs beside the work of its clients: per client and per round, with Prefect and MLflow on.

    python -m shoal_research.benchmarks.orchestration

One worker slot, so that no slot waits for another. A round is counted from the end of the one before to its own end:
task runs, messages, checkpoint, tables, metrics and aggregation are all in it; clients' own seconds are taken off.
Rounds are the ones in the middle: the first starts workers and the last is evaluated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.engine.store.run_folder import RunFolder
from shoal_research.benchmarks.meter import wait_quiet
from shoal_research.benchmarks.peers import ROOT, SOURCES, prefect_server, versions
from shoal_research.benchmarks.shoal_run import prepare_workload, settings_of
from shoal_research.benchmarks.workload import Workload

CASES = (
    ("20 clients of about 1 s", Workload(clients=20, epochs=9)),
    ("20 short clients", Workload(clients=20)),
    ("100 short clients", Workload(clients=100, samples=100)),
    ("20 short clients of 1.66 million weights", Workload(clients=20, samples=50, encoder="mcmahan")),
    ("40 clients of 11.2 million weights", Workload(clients=40, samples=2, batch=2, encoder="resnet18")),
)
"""What is measured, by name."""


def beside_training(rounds: list[dict[str, float]], trained: dict[int, float]) -> list[dict[str, float]]:
    """Of each round between the first and the last: its seconds, those of its clients, and the rest.

    Args:
        rounds: rows of a run's table of rounds: round, clients, finished_at, seconds_aggregate.
        trained: seconds of all clients of a round, one after another.
    """
    found = []
    for before, row in itertools.pairwise(rounds[:-1]):
        whole = row["finished_at"] - before["finished_at"]
        work = trained[int(row["round"])]
        found.append(
            {
                "round_s": whole,
                "client_s": work / row["clients"],
                "rest_s": whole - work,
                "ms_a_client": 1000 * (whole - work) / row["clients"],
                "share": (whole - work) / whole,
                "aggregate_s": row["seconds_aggregate"],
            }
        )
    return found


def one(work: Workload, environment: dict[str, str]) -> dict[str, float]:
    """Medians over the middle rounds of one `shoal run`."""
    home = Path(environment["SHOAL_HOME"])
    name = prepare_workload(work, home / "data" / "store")
    settings = settings_of(work, name, 1)
    settings["tracking"]["prefect"] = environment["BENCH_PREFECT"]
    path = home / f"{name}.yaml"
    path.write_text(json.dumps(settings))
    wait_quiet()
    command = [sys.executable, "-m", "shoal.cli.main", "run", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"the run failed:\n{done.stderr[-3000:]}")
    run = RunFolder(Path(json.loads(done.stdout)["run"]))
    rounds = run.table("rounds").to_dict("records")
    trained = run.table("clients").groupby("round")["seconds"].sum().to_dict()
    rows = beside_training(rounds, trained)
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]} | {"rounds": float(len(rows))}


def main() -> None:
    """A table on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", type=int, nargs="+", default=list(range(len(CASES))), help="numbers of rows, from 0")
    given = parser.parse_args()
    print("| clients | Prefect | s a client | s a round | ms a client beside it | share of the round | rounds |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        with prefect_server(home) as url:
            for name, work in (CASES[number] for number in given.cases):
                for prefect in ("auto", "off"):
                    environment = {**os.environ, "SHOAL_HOME": str(home), "OMP_NUM_THREADS": "1"}
                    environment |= {"PYTHONPATH": SOURCES, "BENCH_PREFECT": prefect}
                    environment |= {"PREFECT_API_URL": url, "PREFECT_HOME": str(home / "prefect")}
                    row: dict[str, Any] = one(replace(work, rounds=given.rounds), environment)
                    print(
                        f"| {name} | {'on' if prefect == 'auto' else 'off'} | {row['client_s']:.3f} | "
                        f"{row['round_s']:.2f} | {row['ms_a_client']:.1f} | {100 * row['share']:.1f} % | "
                        f"{row['rounds']:.0f} |",
                        flush=True,
                    )
    print(json.dumps(versions(None)))


if __name__ == "__main__":
    main()
