"""The demonstration over several seeds, and its table: python -m shoal_research.benchmarks.demo --seeds 0 1 2 3 4

Writes docs/demo.json after each seed, so that it can be stopped and called again; with --table it prints the table of
docs/results/digits.md from it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from shoal.cli.demo import CLIENT_WORDS, LABELS, planned, run_planned
from shoal.engine.workers.worker_processes import start_fork_server

NUMBERS = Path(__file__).parents[2] / "docs" / "demo.json"
SCORES = ("acc", "nmi", "ari", "acc_min", "acc_max")


def measure(seeds: list[int], path: Path, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run the demonstration for the seeds that the file does not have yet, and add them to it.

    Returns:
        seed -> clients -> way -> method, scores and the seconds of its rounds.
    """
    measured: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    off = {"tracking": {"mlflow": False, "prefect": "off"}, **(changes or {})}
    for seed in seeds:
        if str(seed) in measured:
            continue
        cells: dict[str, dict[str, Any]] = {}
        for each in run_planned(planned(seed, off), Console(stderr=True)):
            scores = {name: round(each.scores[name], 4) for name in SCORES if name in each.scores}
            cell = {"method": each.method, **scores, "seconds": round(each.result.seconds, 1)}
            cells.setdefault(each.clients, {})[each.way] = cell
        measured[str(seed)] = cells
        path.write_text(json.dumps(measured, indent=1) + "\n")
    return measured


def table(measured: dict[str, Any]) -> str:
    """ACC of each run by seed, in Markdown, and on how many seeds clients together are ahead of the floor."""
    seeds = sorted(measured, key=int)
    lines = [
        f"| clients' images | method | {' | '.join(f'seed {seed}' for seed in seeds)} | mean |",
        f"|---|---|{'---|' * len(seeds)}---|",
    ]
    verdicts = []
    for clients, said in CLIENT_WORDS.items():
        for way in ("floor", "alone", "together"):
            cells = [measured[seed][clients][way] for seed in seeds]
            values = [cell["acc"] for cell in cells]
            shown = " | ".join(f"{value:.3f}" for value in values)
            lines.append(f"| {said} | {LABELS[cells[0]['method']]} | {shown} | {sum(values) / len(values):.3f} |")
        seeds_ahead = sum(measured[s][clients]["together"]["acc"] > measured[s][clients]["floor"]["acc"] for s in seeds)
        verdicts.append(f"{said}: ahead of the floor on {seeds_ahead} of {len(seeds)} seeds.")
    return "\n".join([*lines, "", *verdicts])


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--json", type=Path, default=NUMBERS)
    parser.add_argument("--table", action="store_true", help="print the table of what is measured")
    parser.add_argument("--slots", type=int, help="worker slots; by default one per core")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.json.read_text())))
    else:
        start_fork_server()
        print(table(measure(given.seeds, given.json, {"workers": {"slots": given.slots}} if given.slots else None)))


if __name__ == "__main__":
    main()
