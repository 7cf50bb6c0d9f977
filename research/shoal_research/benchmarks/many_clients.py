"""Very many small clients with private memory, for many rounds: what a whole round costs beside their training.

    python -m shoal_research.benchmarks.many_clients --clients 100 10000 1000000 --rounds 300 --at 10 300

A round is counted from the end of the one before to its own end: sampling, requests, messages, aggregation, checkpoint,
tables and metrics are all in it, and no evaluation. Of that, the clients' own seconds are taken off, shared by the
slots. Beside it stand the CPU time of the process that drives the run, which other work on the machine disturbs less,
and the memory of the whole process tree.

`--in-turn` compares what a machine's wandering speed would blur: every size at every round of `--at` is a run of its
own, which goes on to there and waits for the others; then they do a round each, in turn, `--turns` times.

`--instant` has the first client of a run trained, and gives its answer in the name of every other: what is left is what
the driver does, so that thousands of rounds can be looked at.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal_research.benchmarks.meter import Peak
from shoal_research.benchmarks.peers import ROOT, SOURCES, versions

if TYPE_CHECKING:
    from shoal.engine.store.run_events import Event

SLOTS = 2
BEFORE = 9
"""How many rounds before the one that is told of the runs begin to take turns."""
TURN, RESULT = "TURN", "RESULT "


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
        "workers": {"slots": SLOTS, "device": "cpu", "precision": "fp32"},
        "tracking": {"mlflow": True, "prefect": "off", "model": False},
    }


def write_images(clients: int, samples: int) -> None:
    """Store a set of random images, `samples` for each client, in the home folder."""
    import numpy as np

    from shoal.data.sets.prepare import store_folder
    from shoal.data.sets.prepared import Manifest, write_prepared
    from shoal.engine.settings import places

    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (clients * samples, 1, 8, 8), dtype=np.uint8)
    y = np.arange(len(x)) % 10
    manifest = Manifest("many", "image", (1, 8, 8), 10, len(x), 0, source="random images", licence="none")
    write_prepared(store_folder(places.store(), "many"), manifest, {"train_x": x, "train_y": y})


class Measured(BaseException):
    """All rounds that are measured are done."""


class RoundMeter:
    """An observer that measures the rounds of a run, and stops the run after `rounds` of them.

    Args:
        peak: meter of the process tree's memory; its own CPU time does not count.
        rounds: number of rounds to do.
        turn: called before each of the last `turns` rounds, and not counted.
        turns: number of rounds that take turns.

    Attributes:
        costs: `round`, `s` (seconds) and `cpu` (CPU seconds of this process) of each round but the first, which also
            starts the workers.
    """

    def __init__(self, peak: Peak, rounds: int, turn: Callable[[], None] | None, turns: int) -> None:
        self.costs: list[dict[str, float]] = []
        self.peak = peak
        self.rounds = rounds
        self.turn = turn
        self.turns = turns
        self._begun: tuple[float, float] | None = None

    def __call__(self, event: Event) -> None:
        """Measure a round that is finished."""
        if event.kind != "round_finished":
            return
        now = self._now()
        if self._begun:
            self.costs.append({"round": event.round, "s": now[0] - self._begun[0], "cpu": now[1] - self._begun[1]})
        if event.round == self.rounds:
            raise Measured
        if self.turn and event.round >= self.rounds - self.turns:
            self.turn()
            now = self._now()
        self._begun = now

    def _now(self) -> tuple[float, float]:
        return time.perf_counter(), time.process_time() - self.peak.cpu


def one(
    clients: int,
    samples: int,
    chosen: int,
    rounds: int,
    wanted: list[int],
    *,
    instant: bool = False,
    turn: Callable[[], None] | None = None,
    turns: int = 19,
) -> list[dict[str, Any]]:
    """Do a run in this process and measure it; return a row for each wanted round, of the median of those about it.

    Args:
        clients: number of clients of the federation.
        samples: number of samples of each client.
        chosen: number of clients of a round.
        rounds: number of rounds to do.
        wanted: numbers of the rounds to report.
        instant: train one client alone.
        turn: called before each of the last `turns` rounds, and not counted.
        turns: number of rounds that take turns.
    """
    from shoal.engine.settings.run_settings import make_settings
    from shoal.engine.store.run_folder import RunFolder
    from shoal.lifecycle.driving import drive
    from shoal.lifecycle.starting import new_run
    from shoal_research.benchmarks.instant_workers import InstantWorkers

    write_images(clients, samples)
    with Peak(every=2) as peak:
        meter = RoundMeter(peak, rounds, turn, turns)
        # One round more than is done: the last is evaluated, on all samples of all clients.
        run = new_run(make_settings(settings_of(clients, samples, chosen, rounds + 1)))
        with contextlib.suppress(Measured):
            drive(run, observers=[meter], slots=InstantWorkers(SLOTS) if instant else None)
    trained = RunFolder(run.path).table("clients").groupby("round")["seconds"].sum() / SLOTS
    found = []
    for at in wanted:
        near = [cost for cost in meter.costs if abs(cost["round"] - at) <= max(4, at // 20)]
        if turn:
            near = meter.costs[-turns:]
        if near:
            found.append(
                {
                    "clients": clients,
                    "round": at,
                    "a_round": min(chosen, clients),
                    "round_s": statistics.median(cost["s"] for cost in near),
                    "beside_s": statistics.median(cost["s"] - trained[cost["round"]] for cost in near),
                    "cpu_s": statistics.median(cost["cpu"] for cost in near),
                    "peak_gb": peak.bytes / 1e9,
                    "memory_files": len(list(run.memory.rglob("*.safetensors"))),
                }
            )
    return found


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """What a round costs beside training, and memory, over the number of clients."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    cost, memory = figure.subplots(1, 2)
    for at in sorted({row["round"] for row in rows}):
        here = [row for row in rows if row["round"] == at]
        x = [row["clients"] for row in here]
        cost.plot(x, [1000 * row["beside_s"] / row["a_round"] for row in here], "-o", label=f"round {at}")
    cost.set(xscale="log", xlabel="clients of the federation", ylabel="ms a client beside its training", ylim=(0, None))
    cost.legend()
    largest = {row["clients"]: row["peak_gb"] for row in rows}
    memory.plot(list(largest), list(largest.values()), "-o")
    memory.set(xscale="log", xlabel="clients of the federation", ylabel="peak memory, GB", ylim=(0, None))
    for axes in (cost, memory):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def in_turn(clients: list[int], wanted: list[int], more: list[str], turns: int = 19) -> list[dict[str, Any]]:
    """A process for each size and each round that is told of; from just before that round on they take turns."""
    runs: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as scratch:
        for at, size in itertools.product(wanted, clients):
            home = scratch.enter_context(tempfile.TemporaryDirectory())
            command = [
                sys.executable,
                "-m",
                "shoal_research.benchmarks.many_clients",
                "--one",
                str(size),
                "--at",
                str(at),
                *more,
            ]
            command += ["--rounds", str(at - BEFORE + turns), "--in-turn", "--turns", str(turns)]
            environment = {**os.environ, "SHOAL_HOME": home, "PYTHONPATH": SOURCES}
            runs.append(
                subprocess.Popen(
                    command, text=True, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            scratch.callback(runs[-1].wait)
            scratch.callback(runs[-1].kill)  # before its folder goes
        said = [answer(run) for run in runs]
        while TURN in said:
            for k, run in enumerate(runs):
                if said[k] == TURN:
                    assert run.stdin is not None
                    run.stdin.write("\n")
                    run.stdin.flush()
                    said[k] = answer(run)
    return [json.loads(line.removeprefix(RESULT))[0] for line in said]


def answer(run: subprocess.Popen[str]) -> str:
    """The next line that says where a run stands."""
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith((TURN, RESULT)):
            return line.rstrip()
    raise SystemExit("a run failed: its error is above")


def wait_for_turn() -> None:
    """Say that this run waits, until its turn comes."""
    print(TURN, flush=True)
    sys.stdin.readline()


def main() -> None:
    """Each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000, 10000])
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--chosen", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--at", type=int, nargs="+", default=[10], help="rounds that are told of")
    parser.add_argument("--instant", action="store_true", help="train one client alone, and repeat its answer")
    parser.add_argument("--in-turn", action="store_true", help="a run for each size and round, which take turns there")
    parser.add_argument("--turns", type=int, default=19, help="how many rounds are done in turn, each time")
    parser.add_argument("--plot", help="write a figure here")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        sizes = given.one, given.samples, given.chosen, given.rounds
        turn = wait_for_turn if given.in_turn else None
        rows = one(*sizes, given.at, instant=given.instant, turn=turn, turns=given.turns)
        print(RESULT + json.dumps(rows), flush=True)
        return
    more = ["--samples", str(given.samples), "--chosen", str(given.chosen)] + ["--instant"] * given.instant
    rows = in_turn(given.clients, given.at, more, given.turns) if given.in_turn else []
    for clients in () if given.in_turn else given.clients:
        with tempfile.TemporaryDirectory() as home:
            command = [sys.executable, "-m", "shoal_research.benchmarks.many_clients", "--one", str(clients)]
            command += ["--rounds", str(given.rounds), "--at", *map(str, given.at), *more]
            environment = {**os.environ, "SHOAL_HOME": home, "PYTHONPATH": SOURCES}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
        if not lines:
            raise SystemExit(f"{clients} clients failed:\n{done.stderr[-3000:]}")
        rows += json.loads(lines[-1].removeprefix(RESULT))
    print(
        "| clients | about round | a round | s a round | s beside training | CPU s of the driver | peak GB | memories |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['clients']:,} | {row['round']:,} | {row['a_round']} | {row['round_s']:.3f} | "
            f"{row['beside_s']:.3f} | {row['cpu_s']:.3f} | {row['peak_gb']:.2f} | {row['memory_files']:,} |"
        )
    print(json.dumps(versions(None)))
    if given.plot:
        draw(rows, given.plot)


if __name__ == "__main__":
    main()
