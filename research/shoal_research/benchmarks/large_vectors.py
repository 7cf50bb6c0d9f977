"""A set of vectors larger than memory may hold: added, clustered by FedKMeans, and written back as a table of clusters.

    python -m shoal_research.benchmarks.large_vectors --rows 1000000 --width 768 --clients 20 --clusters 50

Vectors are drawn about planted centres and written as one .npy file; their clients, which lie all over the file, come
from a second one. Adding and clustering run as the command line does them. Memory is that of the whole process tree,
looked at several times a second: anonymous pages, shared ones shared out (Pss_Anon and Pss_Shmem of smaps_rollup).
Pages of memory-mapped files that nobody wrote to are not in it, since the system takes them back when it needs room;
`with files` counts them too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from shoal_research.benchmarks.meter import TICK, tree
from shoal_research.benchmarks.peers import SOURCES

NAME = "large"
CHUNK = 20_000
"""Vectors that are drawn at once."""
SPREAD = 0.35
"""Distance of the planted centres from their mean in each direction, where samples deviate by 1 from their centre."""
LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Step:
    """What one command took.

    Attributes:
        name: of the step.
        seconds: from its start to its end.
        cpu: CPU seconds of all its processes, as they were last seen.
        anonymous, pss: largest memory of its processes, bytes.
    """

    name: str
    seconds: float
    cpu: float
    anonymous: int
    pss: int


def write_vectors(folder: Path, rows: int, width: int, clients: int, clusters: int) -> np.ndarray:
    """Write x.npy and clients.csv to a folder, and return the planted cluster of each vector."""
    rng = np.random.default_rng(0)
    centres = rng.normal(0, SPREAD, (clusters, width)).astype(np.float32)
    truth = rng.integers(0, clusters, rows)
    with (folder / "x.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": (rows, width)}
        )
        for start in range(0, rows, CHUNK):
            mine = truth[start : start + CHUNK]
            noise = rng.standard_normal((len(mine), width), dtype=np.float32)
            file.write((centres[mine] + noise).data)
    pd.DataFrame({"client": rng.integers(0, clients, rows)}).to_csv(folder / "clients.csv", index=False)
    return truth


def anonymous_memory(pids: list[int]) -> tuple[int, int]:
    """Return bytes of processes, shared pages shared out: those of no file, and all."""
    found = {"Pss": 0, "Pss_Anon": 0, "Pss_Shmem": 0}
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        for line in text.splitlines():
            key = line.split(":")[0]
            if key in found:
                found[key] += int(line.split()[1]) * 1024
    return found["Pss_Anon"] + found["Pss_Shmem"], found["Pss"]


def cpu_seconds(pids: list[int]) -> dict[int, float]:
    """Return the CPU seconds of each process that still lives."""
    found = {}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        found[pid] = (int(fields[11]) + int(fields[12])) / TICK
    return found


def step(name: str, command: list[str], home: Path) -> tuple[Step, str]:
    """Run a command of the project, and return what it took and what it printed."""
    environment = {**os.environ, "SHOAL_HOME": str(home), "PYTHONPATH": SOURCES}
    spent: dict[int, float] = {}
    began = time.perf_counter()
    largest = [0, 0]
    ended = threading.Event()

    def watch() -> None:
        nonlocal largest
        while not ended.wait(LOOK_SECONDS):
            pids = [pid for pid in tree() if pid != os.getpid()]
            memory = anonymous_memory(pids)
            spent.update(cpu_seconds(pids))
            largest = [max(one, other) for one, other in zip(largest, memory, strict=True)]

    watcher = threading.Thread(target=watch)
    watcher.start()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=home, check=False)
    ended.set()
    watcher.join()
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return Step(
        name, time.perf_counter() - began, sum(spent.values()), largest[0], largest[1]
    ), done.stdout + done.stderr


def accuracy(home: Path, truth: np.ndarray) -> tuple[float, int]:
    """Return the clusters' accuracy against the planted ones, and the number of rows of the table of clusters."""
    import pandas as pd

    from shoal.methods.scores.clustering import crossed, table_scores

    (path,) = home.glob("runs/*/clusters.parquet")
    table = pd.read_parquet(path, columns=["sample", "cluster"])
    return table_scores(crossed(truth[table["sample"]], table["cluster"].to_numpy()))["acc"], len(table)


def trial(home: Path, rows: int, width: int, clients: int, clusters: int, slots: int) -> list[Step]:
    """Do all steps in a folder, and print what came out."""
    truth = write_vectors(home, rows, width, clients, clusters)
    shoal = [sys.executable, "-m", "shoal.cli.main"]
    command = [*shoal, "data", "add", str(home / "x.npy"), "--name", NAME, "--clients", str(home / "clients.csv")]
    added, _ = step("added", command, home)
    settings = {
        "method.name": "fedkmeans",
        "data.name": NAME,
        "model.clusters": clusters,
        "workers.slots": slots,
        "workers.device": "cpu",
        "tracking.prefect": "off",
    }
    command = [*shoal, "run", *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]
    run, said = step("clustered and written back", command, home)
    acc, count = accuracy(home, truth)
    rounds = re.findall(r"round (\d+)", said)
    print(f"{count:,} rows in the table of clusters, ACC {acc:.4f}, {max(map(int, rounds), default=0)} rounds")
    return [added, run]


def main() -> None:
    """Do the trial in a folder that is removed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--clusters", type=int, default=50)
    parser.add_argument("--slots", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        steps = trial(Path(home), given.rows, given.width, given.clients, given.clusters, given.slots)
    print("| step | s | CPU s | peak GB | peak GB with files |")
    print("|---|---|---|---|---|")
    for each in steps:
        sizes = f"{each.anonymous / 1e9:.2f} | {each.pss / 1e9:.2f}"
        print(f"| {each.name} | {each.seconds:.1f} | {each.cpu:.1f} | {sizes} |")
    print(json.dumps({"rows": given.rows, "width": given.width, "clients": given.clients, "clusters": given.clusters}))


if __name__ == "__main__":
    main()
