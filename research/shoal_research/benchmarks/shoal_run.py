"""The workload as a run of Shoal: its data as a prepared set with natural clients, its settings, its rounds' times."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
from torch import Tensor

from shoal.data.sets.prepare import store_folder
from shoal.data.sets.prepared import Manifest, write_prepared
from shoal.engine.store.checkpoint import load_round
from shoal.engine.store.run_folder import RunFolder
from shoal_research.benchmarks.meter import machine_busy, tree_cpu
from shoal_research.benchmarks.workload import CLASSES, SEED, SHAPE, Workload, raw_client


def prepare_workload(work: Workload, store: Path) -> str:
    """Write the clients' images as a prepared set, where it is not there yet, and return its name.

    Each client has one image more, for validation: the method wants one, and it is not trained on.
    """
    name = f"bench-c{work.clients}-n{work.samples}"
    folder = store_folder(store, name)
    if not (folder / "manifest.json").exists():
        parts = [raw_client(client, work.samples) for client in range(work.clients)]
        x = np.concatenate([np.concatenate([p[0].numpy(), p[0][:1].numpy()]) for p in parts])
        y = np.concatenate([np.concatenate([p[1].numpy(), p[1][:1].numpy()]) for p in parts])
        clients = np.repeat(np.arange(work.clients), work.samples + 1)
        manifest = Manifest(name, "image", SHAPE, CLASSES, len(x), 0, source="random images", licence="none")
        write_prepared(folder, manifest, {"train_x": x, "train_y": y}, {"client": clients})
    return name


def settings_of(work: Workload, name: str, workers: int) -> dict:
    """The settings of the run."""
    return {
        "method": {"name": "fedavg"},
        "data": {"name": name},
        "partition": {"kind": "by_column", "validation": 1.0 / (work.samples + 2)},
        "model": {"encoder": work.encoder},
        "local": {
            "epochs": work.epochs,
            "batch": work.batch,
            "optimiser": "sgd",
            "lr": work.lr,
            "momentum": 0.0,
        },
        "rounds": work.rounds,
        "seed": SEED,
        "evaluate": {"every": work.rounds},
        "workers": {"slots": workers, "device": "cpu", "precision": "fp32"},
        "tracking": {"mlflow": True, "prefect": "auto", "experiment": "bench", "model": False},
    }


def run_workload(work: Workload, workers: int) -> tuple[Tensor, list[tuple[float, float, float]]]:
    """Start it as a user does, by `shoal run`: a Prefect flow where a server answers, with MLflow.

    Returns:
        The final weights, and a mark before the first round and after every one.
    """
    from shoal.cli import main as cli
    from shoal.engine.settings import places

    name = prepare_workload(work, places.store())
    path = places.home() / f"{name}.yaml"
    path.write_text(json.dumps(settings_of(work, name, workers)))
    marks: dict[int, tuple[float, float, float]] = {}
    over = threading.Event()
    shift = time.perf_counter() - time.time()

    def watch() -> None:
        # The run's own event log says when rounds ended; CPU seconds are read a moment later.
        while not over.is_set():
            for log in places.runs().glob("*/events.jsonl"):
                for line in log.read_text().splitlines():
                    event = json.loads(line)
                    if event["event"] in ("started", "round_finished") and event["round"] not in marks:
                        marks[event["round"]] = (event["time"] + shift, tree_cpu(), machine_busy())
            over.wait(0.05)

    shutil.rmtree(places.runs(), ignore_errors=True)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            cli.app(["run", str(path), "--json"], standalone_mode=False)
        time.sleep(0.2)
    finally:
        over.set()
        watcher.join()
    run = RunFolder(Path(json.loads(said.getvalue())["run"]))
    return load_round(run, work.rounds).server.tensors["weights"], [marks[r] for r in sorted(marks)]
