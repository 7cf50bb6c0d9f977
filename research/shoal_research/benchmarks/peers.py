"""Shoal, a plain torch loop, Flower and pfl on one workload, side by side in one run.

    python -m shoal_research.benchmarks.peers --peers .bench/bin/python --repeats 3

Each measurement is a process of its own, on a machine that was found idle. A row is the median of its runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import requests
import torch

from shoal_research.benchmarks.meter import wait_quiet
from shoal_research.benchmarks.workload import Workload

ROOT = Path(__file__).resolve().parents[3]
SOURCES = os.pathsep.join((str(ROOT), str(ROOT / "research")))
"""PYTHONPATH of processes that measure."""
PLAIN = "plain torch, {threads} thread(s)"


@contextlib.contextmanager
def prefect_server(home: Path) -> Iterator[str]:
    """A Prefect server of the benchmark's own; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    environment = {**os.environ, "PREFECT_HOME": str(home / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    process = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        for _ in range(240):
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"{url}/health", timeout=2).ok:
                    break
            time.sleep(0.5)
        else:
            raise SystemExit("the Prefect server did not start")
        yield url
    finally:
        process.terminate()
        process.wait(20)


def measure(
    python: str, engine: str, work: Workload, threads: int, workers: int, weights: Path, environment: dict[str, str]
) -> dict[str, Any]:
    """One process; its `RESULT` line and its wall time."""
    command = [
        python,
        "-m",
        "shoal_research.benchmarks.engines",
        engine,
        "--threads",
        str(threads),
        "--workers",
        str(workers),
    ]
    command += ["--weights", str(weights), "--work", json.dumps(work.to_json())]
    wait_quiet()
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    wall = time.perf_counter() - began
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"{engine} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return {**json.loads(lines[-1][7:]), "job_s": wall}


def compare(work: Workload, peers: str | None, repeats: int, only: list[str] | None = None) -> dict[str, Any]:
    """All engines in turn, `repeats` times over; medians and ratios."""
    cores = os.cpu_count() or 1
    plan = [
        ("plain torch, 1 thread", sys.executable, "plain", 1, 1),
        (f"plain torch, {cores} threads", sys.executable, "plain", cores, 1),
        (f"Shoal, {cores} slots, Prefect and MLflow on", sys.executable, "shoal", 1, cores),
    ]
    if peers:
        plan += [
            (f"Flower, {cores} actors of 1 core", peers, "flower", 1, cores),
            (f"Flower, 1 actor of {cores} cores", peers, "flower", cores, 1),
            ("pfl, 1 thread", peers, "pfl", 1, 1),
        ]
    plan = [entry for entry in plan if not only or entry[2] in only]
    runs: dict[str, list[dict[str, Any]]] = {entry[0]: [] for entry in plan}
    weights: dict[str, torch.Tensor] = {}
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        base = {**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": ""}
        base.pop("OMP_NUM_THREADS")
        with prefect_server(home) as url:
            own = {**base, "SHOAL_HOME": str(home), "PREFECT_API_URL": url, "PREFECT_HOME": str(home / "prefect")}
            for _ in range(repeats):
                for name, python, engine, threads, workers in plan:
                    environment = own if engine == "shoal" else base
                    path = home / "weights.pt"
                    runs[name].append(measure(python, engine, work, threads, workers, path, environment))
                    weights[name] = torch.load(path)
                    print(name, {k: round(v, 3) for k, v in runs[name][-1].items()}, file=sys.stderr, flush=True)
    rows = []
    for name, found in runs.items():
        row: dict[str, Any] = {"engine": name, "runs": len(found)}
        row |= {key: statistics.median(r[key] for r in found) for key in found[0]}
        row |= {"round_s_all": [r["round_s"] for r in found], "clients_per_s": work.clients / row["round_s"]}
        reference = weights.get("plain torch, 1 thread")
        if reference is not None and "Shoal" not in name and "pfl" not in name:
            row["max_abs_diff"] = float((weights[name] - reference).abs().max())
        rows.append(row)
    return {"work": work.to_json(), "rows": rows, "versions": versions(peers)}


def versions(peers: str | None) -> dict[str, str]:
    """Hardware and versions that figures stand with."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = next((line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")), "unknown")
    found = {
        "cpu": f"{os.cpu_count()} cores of {name}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for package in ("prefect", "mlflow"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    if peers:
        ask = "import importlib.metadata as m; print(*(f'{p}={m.version(p)}' for p in ('flwr', 'ray', 'pfl', 'torch')))"
        answer = subprocess.run([peers, "-c", ask], capture_output=True, text=True, check=True).stdout
        found |= {f"peers' {k}" if k == "torch" else k: v for k, v in (part.split("=") for part in answer.split())}
    return found


def table(result: dict[str, Any]) -> str:
    """As Markdown."""
    lines = [
        "| engine | s per round | clients/s | CPU s per round | first round s | whole job s | runs |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['engine']} | {r['round_s']:.3f} | {r['clients_per_s']:.1f} | {r['round_cpu_s']:.2f} | "
        f"{r['first_round_s']:.2f} | {r['job_s']:.1f} | {r['runs']} |"
        for r in result["rows"]
    ]
    rows = {r["engine"]: r for r in result["rows"]}
    ours = next((r for name, r in rows.items() if name.startswith("Shoal")), None)
    if ours is not None:
        lines.append("")
        for name, r in rows.items():
            if r is not ours:
                lines.append(
                    f"- Shoal's clients/s over that of {name}: {ours['clients_per_s'] / r['clients_per_s']:.2f}; "
                    f"its whole job takes {ours['job_s'] / r['job_s']:.2f} of the time"
                )
    return "\n".join(lines)


def main() -> None:
    """The comparison on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers", help="the Python of an environment with flwr[simulation] and pfl; none: without them"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="engines: plain, shoal, flower, pfl")
    parser.add_argument("--json", type=Path)
    for name, value in Workload().to_json().items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    given = parser.parse_args()
    work = Workload(**{name: getattr(given, name) for name in Workload().to_json()})
    result = compare(work, given.peers, given.repeats, given.only)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    print(json.dumps(result["versions"]))


if __name__ == "__main__":
    main()
