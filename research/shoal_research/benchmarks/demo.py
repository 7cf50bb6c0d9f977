"""The demonstration over several seeds, and its table: python -m shoal_research.benchmarks.demo --seeds 0 1 2 3 4

Writes docs/demo.json after each seed, so that it can be stopped and called again; with --table it prints the table of
docs/results/digits.md from it. With --figure FILE.png it draws docs/images/demo.png from the runs of seed 0.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shoal.cli.demo import CLIENT_WORDS, LABELS, planned, run_planned
from shoal.data.sets.prepared import open_prepared
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker_processes import start_fork_server
from shoal.review.pages.cluster_sheets import images_of
from shoal.review.results.clusters import read_clusters
from shoal.review.results.result import run_result

NUMBERS = Path(__file__).parents[2] / "docs" / "demo.json"
SCORES = ("acc", "nmi", "ari", "acc_min", "acc_max")
IMAGES_PER_CLUSTER = 10
"""In the figure."""
COLOURS = {"floor": "0.6", "alone": "tab:orange", "together": "tab:blue"}


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
        for (clients, way), run in run_planned(planned(seed, off)).items():
            result = run_result(run)
            scores = {name: round(result.metrics[name], 4) for name in SCORES if name in result.metrics}
            cell = {"method": run.settings().method.name, **scores, "seconds": round(result.seconds, 1)}
            cells.setdefault(clients, {})[way] = cell
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


def draw(runs: Mapping[tuple[str, str], RunFolder], path: Path) -> Path:
    """Draw ACC of all runs, and the most certain images of the clusters that the clients found together.

    Args:
        runs: by (clients, way).
        path: the PNG file, whose folder is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [f"{CLIENT_WORDS[clients]}\n{LABELS[run.settings().method.name]}" for (clients, _), run in runs.items()]
    values = [run_result(run).metrics["acc"] for run in runs.values()]
    bars = left.barh(names, values, color=[COLOURS[way] for _, way in runs])
    left.bar_label(bars, fmt="%.2f", padding=3)
    left.invert_yaxis()
    left.set(xlim=(0, 1.1), title="found without labels", xlabel="ACC, all 1,797 digits")
    shown = runs["alike", "together"]
    draw_clusters(right, shown)
    label = LABELS[shown.settings().method.name].removeprefix("together: ")
    right.set_title(f"clusters of {label}, their most certain images")
    figure.savefig(path, dpi=120)
    return path


def draw_clusters(axes: Axes, run: RunFolder) -> None:
    """Draw a row of the most certain images for each cluster of a run on digits, with its size beside it."""
    table = read_clusters(run)
    assert table is not None, "the run is finished"
    image_of = images_of(open_prepared(run.folder_of("data")))
    clusters = list(table.groupby("cluster"))
    rows = []
    for _, samples in clusters:
        first = samples.nlargest(IMAGES_PER_CLUSTER, "confidence")
        images = [image_of(*where)[0] for where in zip(first["part"], first["sample"], strict=True)]
        images += [np.full((8, 8), 255, np.uint8)] * (IMAGES_PER_CLUSTER - len(images))
        rows.append(np.hstack([np.pad(image, (0, 1), constant_values=255) for image in images]))
    axes.imshow(np.vstack(rows)[:-1, :-1], cmap="gray", interpolation="nearest")
    axes.set_xticks([])
    labels = [f"cluster {cluster}\n{len(samples)} images" for cluster, samples in clusters]
    axes.set_yticks([9 * row + 3.5 for row in range(len(clusters))], labels, fontsize=7)
    axes.tick_params(left=False)
    axes.spines[:].set_visible(False)


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--json", type=Path, default=NUMBERS)
    parser.add_argument("--table", action="store_true", help="print the table of what is measured")
    parser.add_argument("--slots", type=int, help="worker slots; by default one per core")
    parser.add_argument("--figure", type=Path, help="draw the runs of seed 0 as this PNG")
    given = parser.parse_args()
    if given.figure is not None:
        start_fork_server()
        draw(run_planned(planned()), given.figure)
    elif given.table:
        print(table(json.loads(given.json.read_text())))
    else:
        start_fork_server()
        print(table(measure(given.seeds, given.json, {"workers": {"slots": given.slots}} if given.slots else None)))


if __name__ == "__main__":
    main()
