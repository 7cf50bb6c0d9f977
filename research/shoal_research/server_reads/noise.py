"""What noise that hides a row costs: ACC by epsilon on sets with labels, and the rows that a server still reads.

    SHOAL_DATA_MIRROR=... python -m shoal_research.server_reads.noise       # an hour on a core, and the table

The sets are some of those that the rules for method auto were chosen on, dealt evenly to six clients. Each run is
played in memory, so that no ledger knows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shoal.data.sets.prepare import own_folder
from shoal.data.sets.prepared import Manifest, write_prepared
from shoal.engine.rounds.privacy import epsilon, multiplier, rho
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.warm_start import initial_state
from shoal.engine.workers.arithmetic import arithmetic
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Tensors
from shoal.methods.scores.clustering import accuracy
from shoal.review.served.server_view import Senders, judged, played_round
from shoal_research.kept import RESULTS
from shoal_research.label_free.tuning_sets import IMAGES, TABLES
from shoal_research.server_reads.measure import BASE

FILE = RESULTS / "private_clusters.json"
BEGIN = "<!-- made by python -m shoal_research.server_reads.noise -->"
END = "<!-- end of what noise costs -->"
PAGE = FILE.parents[3] / "docs" / "privacy.md"
CLIENTS = 6
SEEDS = range(3)
DELTA = 1e-5
NOISES = (0.3, 1.0, 2.0, 4.0)
"""Multiples of what a row can change."""
TABLE_SETS = ("breast cancer", "digits as a table", "groups in units", "iris")
IMAGE_SETS = ("MNIST", "textures")
CASES: Mapping[str, dict[str, Any]] = {
    "`fedkmeans`": {"name": "fedkmeans"},
    "`fedgmm`, tied": {"name": "fedgmm", "covariance": "tied"},
    "`fedkmeans`, `landmarks: 60`": {"name": "fedkmeans", "landmarks": 60},
}


def write_set(name: str) -> tuple[str, dict[str, Any]]:
    """Write a set to the store; return its name there and what its method needs: images are rows of pixels."""
    x, y = ({**TABLES, **IMAGES}[name])()
    image = name in IMAGES
    x = x.reshape(len(x), -1) / 255 if image else x
    stored = "rows-" + name.lower().replace(" ", "-").replace(",", "")
    extra = {} if image else {"columns": "measurements"}
    manifest = Manifest(stored, "vector", x.shape[1:], int(y.max()) + 1, len(x), 0, "made", "none", extra=extra)
    rows: dict[str, np.ndarray] = {"train_x": x.astype(np.float32), "train_y": y.astype(np.int64)}
    write_prepared(own_folder(places.store(), stored), manifest, rows)
    return stored, {"components": 16} if image else {}


def run(data: str, method: dict[str, Any], noise: float | None, seed: int) -> dict[str, float] | None:
    """Return ACC, what the server reads, and epsilon of messages and of states; None where noise hides all.

    Args:
        data: name of the set.
        method: settings of the method.
        noise: multiple of what a row can change; None: the method without noise.
        seed: of the run.
    """
    privacy = {} if noise is None else {"clip": 1.0, "noise": noise, "unit": "row"}
    more = {"data": {"name": data}, "method": method, "privacy": privacy, "seed": seed}
    opened = OpenedRun(new_run(make_settings(merge(dict(BASE), more))))
    senders: Senders = {}
    memories: dict[int, Tensors] = {}
    try:
        with one_thread(), arithmetic(opened.precision):
            server = initial_state(opened)
            while not server.finished and server.round < opened.settings.rounds:
                server = played_round(opened, server, memories, senders, summed=False)
    except MethodError:
        return None  # the noise hides all columns
    x = torch.as_tensor(np.asarray(opened.prepared.train_x))
    cluster = opened.method.predictor(server)(x).cluster.numpy()
    scores = {"acc": accuracy(np.asarray(opened.prepared.train_y), cluster)}
    if noise:
        view = judged(senders)
        scores |= {"near": view.near, "guess": view.guessed}
        whole = multiplier(noise, [1] * CLIENTS)
        sent, mean = (epsilon(server.round * rho(of), DELTA) for of in (noise, whole))
        scores |= {"rounds": server.round, "epsilon_sent": sent, "epsilon_mean": mean}
    return scores


def cells() -> Iterator[tuple[str, str, dict[str, Any], float | None]]:
    """Yield the set, the name of the case, its settings, and the noise of each cell of the table."""
    for case, method in CASES.items():
        for name in (*TABLE_SETS, *IMAGE_SETS):
            for noise in (None, *NOISES):
                yield name, case, method, noise


def measure() -> dict[str, Any]:
    """Return the scores of each seed, by case, set and noise; keep them as they come, and go on where they end."""
    figures: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    written = {name: write_set(name) for name in (*TABLE_SETS, *IMAGE_SETS)}
    for name, case, method, noise in cells():
        if str(noise) in figures.get(case, {}).get(name, {}):
            continue
        data, more = written[name]
        scores = [run(data, {**method, **more}, noise, seed) for seed in SEEDS]
        figures.setdefault(case, {}).setdefault(name, {})[str(noise)] = scores
        print(case, name, noise, mean_accuracy(scores), scores[-1], flush=True)
        FILE.write_text(json.dumps(figures, indent=1) + "\n")
    return figures


def mean_accuracy(scores: Sequence[Mapping[str, float] | None]) -> str:
    """Return the mean over seeds; a dash where noise hid all columns of a seed."""
    known = [one["acc"] for one in scores if one]
    return f"{np.mean(known):.2f}" if len(known) == len(scores) else "-"


def table(figures: Mapping[str, Any]) -> str:
    """Return the mean ACC of the seeds by noise, with epsilon, for the cases that were measured on all sets."""
    sets = [*TABLE_SETS, *IMAGE_SETS]
    lines = [
        f"| ACC | noise | epsilon: messages, states | {' | '.join(sets)} |",
        f"|---|---:|---:|{'---:|' * len(sets)}",
    ]
    measured = {
        case: by_set for case, by_set in figures.items() if all(len(by_set.get(s, {})) > len(NOISES) for s in sets)
    }
    for case, by_set in measured.items():
        for noise in ("None", *map(str, NOISES)):
            accs = [mean_accuracy(by_set[name][noise]) for name in sets]
            spent = ["none", "none"]
            if noise != "None":
                first = next(one for by in by_set.values() for one in by[noise] if one)
                spent = [noise, f"{first['epsilon_sent']:.1f}, {first['epsilon_mean']:.1f}"]
            lines.append(f"| {case} | {' | '.join([*spent, *accs])} |")
    return "\n".join(lines)


def most_read(figures: Mapping[str, Any], noises: Sequence[float] = NOISES) -> float:
    """Return the largest share of rows that a run with noise gave away beyond guessing from the centres."""
    runs = [
        one for sets in figures.values() for by in sets.values() for z in noises for one in by.get(str(z), []) if one
    ]
    return max(0.0, *(float(one["near"] - one["guess"]) for one in runs))


def page_with_table(page: str, figures: Mapping[str, Any]) -> str:
    """Return the text of the page with the table between the marks made again."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    read = (
        f"Beyond guessing from the centres the attack reads {most_read(figures):.1%} of the rows of any of these runs."
    )
    return f"{before}{BEGIN}\n\n{table(figures)}\n\n{read}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text(), measure()))
