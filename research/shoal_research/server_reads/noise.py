"""What noise that hides a row costs: ACC by epsilon on sets with labels, and the rows that a server still reads.

    SHOAL_DATA_MIRROR=... python -m shoal_research.server_reads.noise    # goes on where it ended, and writes the page

The sets are some of those that the rules for method auto were chosen on, dealt evenly to six clients; the petals of
iris are two columns, in which little noise hides little. Each run is played in memory, so that no ledger knows it.

The docs recommend the least of `NOISES` at which the attack reads on no set, in the mean of the seeds, more rows than
guessing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shoal.data.sets.prepare import own_folder
from shoal.data.sets.prepared import Manifest, write_prepared
from shoal.engine.rounds.privacy import epsilon, multiplier, rho
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.opened_run import OpenedRun
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.context import MethodError
from shoal.methods.scores.clustering import accuracy
from shoal_research.kept import RESULTS
from shoal_research.label_free.tuning_sets import IMAGES, TABLES
from shoal_research.server_reads.below_noise import played_below_noise, rounds_of
from shoal_research.server_reads.measure import BASE, PAGE
from shoal_research.words import between, markdown_table

FILE = RESULTS / "private_clusters.json"
BEGIN = "<!-- made by python -m shoal_research.server_reads.noise -->"
END = "<!-- end of what noise costs -->"
CLIENTS = 6
SEEDS = range(3)
DELTA = 1e-5
NOISES = (0.3, 1.0, 2.0, 4.0)
"""Multiples of what a row can change."""
TABLE_SETS = ("breast cancer", "digits as a table", "groups in units", "iris")
IMAGE_SETS = ("MNIST", "textures")
PETALS = "petals of iris"
CASES: Mapping[str, tuple[dict[str, Any], Sequence[str]]] = {
    "`fedkmeans`": ({"name": "fedkmeans"}, (*TABLE_SETS, PETALS, *IMAGE_SETS)),
    "`landmarks: 60`": ({"name": "fedkmeans", "landmarks": 60}, IMAGE_SETS),
    "`fedgmm`, tied": ({"name": "fedgmm", "covariance": "tied"}, (*TABLE_SETS, PETALS)),
}
"""Settings of each method, and the sets that it is measured on."""


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows (n, d) of a set, images as rows of pixels, and their classes (n,)."""
    if name == PETALS:
        x, y = TABLES["iris"]()
        return x[:, 2:], y
    x, y = ({**TABLES, **IMAGES}[name])()
    if name in IMAGES:
        x = x.reshape(len(x), -1) / 255
    return x, y


def write_set(name: str) -> tuple[str, dict[str, Any]]:
    """Write a set to the store; return its name there, and what a method needs for it."""
    x, y = rows_of(name)
    stored = "rows-" + name.lower().replace(" ", "-")
    extra: dict[str, Any] = {"columns": "measurements"}
    method: dict[str, Any] = {}
    if name in IMAGES:
        extra = {}
        method = {"components": 16}
    manifest = Manifest(stored, "vector", x.shape[1:], int(y.max()) + 1, len(x), 0, "made", "none", extra=extra)
    arrays: dict[str, np.ndarray] = {"train_x": x.astype(np.float32), "train_y": y.astype(np.int64)}
    write_prepared(own_folder(places.store(), stored), manifest, arrays)
    return stored, method


def scores_of(data: str, method: dict[str, Any], noise: float | None, seed: int) -> dict[str, float] | None:
    """Return ACC, what the server reads, and epsilon of messages and of states; None where noise hides all.

    Args:
        data: name of the set.
        method: settings of the method.
        noise: multiple of what a row can change; None: the method without noise.
        seed: of the run.
    """
    privacy: dict[str, Any] = {}
    if noise is not None:
        privacy = {"clip": 1.0, "noise": noise, "unit": "row"}
    more = {"data": {"name": data}, "method": method, "privacy": privacy, "seed": seed}
    opened = OpenedRun(new_run(make_settings(merge(dict(BASE), more))))
    scores: dict[str, float] = {}
    try:
        if noise is None:
            *_, (server, _) = rounds_of(opened)
        else:
            view, server = played_below_noise(opened, summed=False)
            spent = [epsilon(server.round * rho(of), DELTA) for of in (noise, multiplier(noise, [1] * CLIENTS))]
            scores = {"near": view.near, "guess": view.guessed, "epsilon_sent": spent[0], "epsilon_mean": spent[1]}
    except MethodError:
        return None  # the noise hides all columns
    x = torch.as_tensor(np.asarray(opened.prepared.train_x))
    cluster = opened.method.predictor(server)(x).cluster.numpy()
    scores["acc"] = accuracy(np.asarray(opened.prepared.train_y), cluster)
    return {name: float(f"{value:.4g}") for name, value in scores.items()}


def measure() -> dict[str, Any]:
    """Return the scores of each seed, by case, set and noise; keep them as they come, and go on where they end."""
    figures: dict[str, Any] = {}
    if FILE.exists():
        figures = json.loads(FILE.read_text())
    for case, (method, sets) in CASES.items():
        for name in sets:
            stored, more = write_set(name)
            by_noise = figures.setdefault(case, {}).setdefault(name, {})
            for noise in (None, *NOISES):
                if str(noise) not in by_noise:
                    by_noise[str(noise)] = [scores_of(stored, {**method, **more}, noise, seed) for seed in SEEDS]
                    print(case, name, noise, by_noise[str(noise)], flush=True)
                    FILE.write_text(json.dumps(figures) + "\n")
    return figures


def accuracy_table(figures: Mapping[str, Any]) -> str:
    """Return the mean ACC of the seeds by noise, with epsilon."""
    sets = [*TABLE_SETS, *IMAGE_SETS]
    body = []
    for case in CASES:
        for noise in map(str, (None, *NOISES)):
            by_set = {name: figures[case][name][noise] for name in sets if name in figures[case]}
            known = next(one for scores in by_set.values() for one in scores if one)
            spent = "none"
            if "epsilon_sent" in known:
                spent = f"{known['epsilon_sent']:.1f}, {known['epsilon_mean']:.1f}"
            accs = [mean_of(by_set.get(name, []), "acc", "{:.2f}") for name in sets]
            body.append([case, noise.replace("None", "none"), spent, *accs])
    return markdown_table(["ACC", "noise", "epsilon: messages, states", *sets], body)


def mean_of(scores: Sequence[Mapping[str, float] | None], value: str, form: str) -> str:
    """Return the mean over seeds; a dash where noise hid all columns of a seed, and nothing where there are none."""
    known = [one[value] for one in scores if one]
    if not scores:
        return ""
    if len(known) < len(scores):
        return "-"
    return form.format(np.mean(known))


def read_table(figures: Mapping[str, Any]) -> str:
    """Return the shares of rows that the attack reads, and that are guessed, by noise, where any are."""
    body = []
    for case, (_, sets) in CASES.items():
        for name in sets:
            by_noise = [figures[case][name][str(noise)] for noise in NOISES]
            if any(one and one["near"] + one["guess"] for scores in by_noise for one in scores):
                shares = [[mean_of(scores, of, "{:.1%}") for of in ("near", "guess")] for scores in by_noise]
                body.append([f"{case}, {name}", *(", ".join(pair) for pair in shares)])
    return markdown_table(["rows: read, guessed", *(f"noise {noise:g}" for noise in NOISES)], body)


def page_with_table(page: str) -> str:
    """Return the text of the page with the tables between the marks made again."""
    figures = json.loads(FILE.read_text())
    return between(page, BEGIN, END, f"{accuracy_table(figures)}\n\n{read_table(figures)}")


if __name__ == "__main__":
    measure()
    PAGE.write_text(page_with_table(PAGE.read_text()))
