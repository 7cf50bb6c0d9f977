"""A federation of thousands of small clients with private memory: time a round, and memory of the whole process tree.

python -m benchmarks.many_clients --clients 10 100 1000 10000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.peers import ROOT, versions


def settings_of(clients: int, samples: int, chosen: int, rounds: int) -> dict[str, Any]:
    """FedPNP, whose clients keep their own past weights, on random vectors' images."""
    return {
        "method": {"name": "fedpnp"},
        "data": {"name": "many"},
        "partition": {"kind": "iid", "clients": clients},
        "model": {"encoder": "tiny-conv"},
        "local": {"epochs": 1, "batch": samples},
        "participation": {"fraction": min(1.0, chosen / clients)},
        "rounds": rounds,
        "evaluate": {"every": rounds},
        "workers": {"slots": 2, "device": "cpu", "precision": "fp32"},
        "tracking": {"mlflow": True, "prefect": "off", "model": False},
    }


def one(clients: int, samples: int, chosen: int, rounds: int) -> dict[str, Any]:
    """Run it in this process and watch it."""
    import numpy as np

    from benchmarks.meter import Peak
    from data.prepare import store_folder
    from data.prepared import Manifest, write_prepared
    from engine import places
    from engine.run_folder import RunFolder
    from engine.settings import make_settings
    from tasks.driving import drive
    from tasks.starting import new_run

    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (clients * samples, 1, 8, 8), dtype=np.uint8)
    y = np.arange(len(x)) % 10
    manifest = Manifest("many", "image", (1, 8, 8), 10, len(x), 0, source="random images", licence="none")
    write_prepared(store_folder(places.store(), "many"), manifest, {"train_x": x, "train_y": y})
    with Peak() as peak:
        run = new_run(make_settings(settings_of(clients, samples, chosen, rounds)))
        drive(run)
    table = RunFolder(run.path).table("rounds")
    trained = RunFolder(run.path).table("clients")
    work = trained.groupby("round")["seconds"].sum() / 2
    steady = table["seconds_round"].iloc[1:-1] if rounds > 2 else table["seconds_round"]
    over = (table.set_index("round")["seconds_train"] - work).iloc[1:]
    return {
        "clients": clients,
        "a_round": int(table["clients"].iloc[-1]),
        "round_s": float(steady.median()),
        "train_s": float(work.iloc[1:].median()),
        "over_ms_a_client": float(over.median()) * 1000 / int(table["clients"].iloc[-1]),
        "peak_gb": peak.bytes / 1e9,
        "memory_files": len(list(run.memory.rglob("*.safetensors"))),
    }


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """What a round costs beside training, and memory, over the number of clients."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    cost, memory = figure.subplots(1, 2)
    x = [row["clients"] for row in rows]
    cost.plot(x, [row["over_ms_a_client"] for row in rows], "-o")
    cost.set(xscale="log", xlabel="clients of the federation", ylabel="ms a client beside its training", ylim=(0, None))
    memory.plot(x, [row["peak_gb"] for row in rows], "-o")
    memory.set(xscale="log", xlabel="clients of the federation", ylabel="peak memory, GB", ylim=(0, None))
    for axes in (cost, memory):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000, 10000])
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--chosen", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot", help="write a figure here")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print("RESULT " + json.dumps(one(given.one, given.samples, given.chosen, given.rounds)), flush=True)
        return
    rows = []
    for clients in given.clients:
        with tempfile.TemporaryDirectory() as home:
            command = [sys.executable, "-m", "benchmarks.many_clients", "--one", str(clients)]
            for name in ("samples", "chosen", "rounds"):
                command += [f"--{name}", str(getattr(given, name))]
            environment = {**os.environ, "SHOAL_HOME": home, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            raise SystemExit(f"{clients} clients failed:\n{done.stderr[-3000:]}")
        rows.append(json.loads(lines[-1][7:]))
    print("| clients | a round | s per round | s of training per slot | ms a client beside it | peak GB |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['clients']:,} | {row['a_round']} | {row['round_s']:.2f} | {row['train_s']:.2f} | "
            f"{row['over_ms_a_client']:.1f} | {row['peak_gb']:.2f} |"
        )
    print(json.dumps(versions(None)))
    if given.plot:
        draw(rows, given.plot)


if __name__ == "__main__":
    main()
