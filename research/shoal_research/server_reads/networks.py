"""The share of patients whose measurements a server reads from weights of networks, on the table of `measure`.

The six clients have 2 to 95 rows. Beside what the attack reads stands what is hit if each row is taken for its client's
mean, which BatchNorm's statistics tell. `shoal explain RUN --server-sees` does the same with the clients of a run.

    python -m shoal_research.server_reads.networks    # goes on where it ended, and writes the table of docs/privacy.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from shoal.engine.settings.merge import merge
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_folder import RunError
from shoal.engine.store.warm_start import initial_state
from shoal.engine.workers.arithmetic import arithmetic
from shoal.lifecycle.starting import new_run
from shoal.methods.training.steps import GradientMethod
from shoal.review.served.server_view import (
    EXACT,
    NEAR,
    Exchange,
    ServerView,
    compared,
    distances,
    of_all_clients,
    played_round,
)
from shoal_research.kept import RESULTS
from shoal_research.server_reads.from_features import MOST_PIXELS_OF_A_CLIENT, FeatureReading
from shoal_research.server_reads.from_weights import FIRST_NORM, Sender, SpanReading, network_rows
from shoal_research.server_reads.measure import BASE, PAGE, SET, add_set
from shoal_research.words import between, markdown_table

FILE = RESULTS / "network_reads.json"
IMAGES = "images"
"""Among the figures in the file."""
PIXELS = ("read", "guessed")
"""The shares of the pixels of images, among these figures."""
BEGIN = "<!-- made by python -m shoal_research.server_reads.networks -->"
END = "<!-- end of what weights tell -->"
CLIENTS = 6
SEEDS = range(3)
ATTACKED: Mapping[int, int] = {2: 3, 4: 3, 8: 2, 32: 1, 95: 1}
"""Number of clients that are attacked, by their number of rows."""
SHOWN = (2, 4, 8, 32)
"""Numbers of rows in the table; of more no row is read either."""
CASES: Mapping[str, dict[str, Any]] = {
    "`fedsimclr`, one step": {"method": {"name": "fedsimclr"}, "local": {"epochs": 1}},
    "`fedsimclr`": {"method": {"name": "fedsimclr"}},
    "`fedcc`, one step of SGD": {"method": {"name": "fedcc"}, "local": {"epochs": 1, "optimiser": "sgd"}},
    "`fedcc`": {"method": {"name": "fedcc"}},
}
"""Settings of each column: a batch has all rows of a client, so that an epoch is a step."""

IMAGE_CASES: Mapping[str, dict[str, Any]] = {
    "one step of `fedsimclr`": {"method": {"name": "fedsimclr"}, "local": {"epochs": 1}},
    "`fedsimclr`": {"method": {"name": "fedsimclr"}},
}
"""Played with clients of two images of digits."""
GUESSED = "`fedsimclr`"
"""The case whose clients are guessed."""
MOST_PIXELS = 0.8
"""An image counts as read from so many of its pixels on, without those that are equal in all images."""
MOST_MATCHED = 3
"""Clients of a run whose rows are sought by matching, or whose images are: both are slow."""
ALIKE = 0.95
"""Share of a message's values that the attack's steps must give from the true rows: rounding grows over steps."""
FAMILY = ("ssd", "fedbyol", "fedema", "fedu2")
"""Methods that are played with two rows alone."""


class NetworkView(NamedTuple):
    """Shares of rows, and of single values, within `NEAR` deviations of the table's columns.

    Attributes:
        near: share of rows of which every column is read.
        values: share of values that are read.
        guessed: share of rows that are read if each is taken for the client's mean.
        guessed_values: share of values likewise.
        drawn: share of rows that draws with the client's mean and deviation hit.
        drawn_values: share of values likewise.
    """

    near: float
    values: float
    guessed: float
    guessed_values: float
    drawn: float
    drawn_values: float


def opened_run(changes: dict[str, Any], rows: int, seed: int, data: str = SET) -> OpenedRun:
    """Return a new run in which each client has so many rows of the table, or of another set."""
    add_set()
    more = {
        "data": {"name": data, "limit": CLIENTS * rows},
        "partition": {"clients": CLIENTS},
        "model": {"clusters": 2},
        "seed": seed,
    }
    return OpenedRun(new_run(make_settings(merge(dict(BASE), changes, more))))


def first_exchanges(opened: OpenedRun) -> list[Exchange]:
    """Return what is exchanged in the first round of a run."""
    with one_thread(), arithmetic(opened.precision):
        return played_round(opened, initial_state(opened), {})[1]


def typical_deviation(opened: OpenedRun) -> np.ndarray:
    """Return the deviation of each column over all rows of the table, or of each pixel over all images, (k,)."""
    table = opened.data.train_x
    return table[torch.arange(len(table))].double().flatten(1).std(0).numpy()


def rows_read(opened: OpenedRun, exchange: Exchange) -> np.ndarray:
    """Return the rows (n, k) that a server takes for a client's.

    Raises:
        RunError: the attack does not take the client's steps, which lead from its rows to its message.
    """
    sent = exchange.left.tensors
    if opened.settings.privacy.clip is None:
        answer = Sender.of(opened.method, exchange).answer(exchange.client.train.raw())
        alike = [torch.isclose(values, sent[name], atol=1e-5).flatten() for name, values in answer.items()]
        if torch.cat(alike).float().mean() <= ALIKE:
            name = opened.settings.method.name
            raise RunError(f"the steps of method {name!r} are not among those that are played (docs/privacy.md)")
    if opened.spec.kind == "image":
        return FeatureReading(Sender.of(opened.method, exchange), tuple(exchange.client.train.raw().shape)).read(0)
    return network_rows(opened.method, exchange, typical_deviation(opened))


def images_view(opened: OpenedRun) -> ServerView:
    """Return what the server of a run on images reads, of the `MOST_MATCHED` clients with the fewest.

    Raises:
        RunError: the run is not of a kind that is played, or each client has too many images.
    """
    typical = typical_deviation(opened)
    exchanges = sorted(first_exchanges(opened), key=lambda exchange: len(exchange.client.train))
    played = [one for one in exchanges if FeatureReading.possible(Sender.of(opened.method, one))]
    if not played:
        raise RunError(
            "of images only steps of SGD of a small-conv network are played, of clients with few and small images "
            f"({MOST_PIXELS_OF_A_CLIENT} pixels in all): docs/privacy.md tells of {opened.settings.method.name!r}"
        )
    read = {}
    for one in played[:MOST_MATCHED]:
        print(f"client {one.client.id}: its images are sought, for some minutes", file=sys.stderr, flush=True)
        read[one.client.id] = rows_read(opened, one)
    views = []
    for number in (client for client, size in enumerate(opened.federation.sizes) if size):
        rows = opened.client(ClientFiles(number), 1).train.raw().double().flatten(1).numpy()
        found = read.get(number, rows[:0])
        near = pixels_near(rows, found, typical)
        guessed = pixels_near(rows, rows.mean(0, keepdims=True), typical)
        shares = [one.max(1, initial=0) for one in (pixels_near(rows, found, typical, EXACT), near, guessed)]
        wrong = int((near.max(0, initial=0) < MOST_PIXELS).sum())
        views.append(
            ServerView._make((len(rows), *((one >= MOST_PIXELS).mean() for one in shares), wrong, MOST_PIXELS))
        )
        told = f"{shares[1].mean():.0%} of their pixels are read" if len(found) else "they are not looked for"
        print(f"client {number}, {len(rows)} images: {told}", file=sys.stderr, flush=True)
    return of_all_clients(views)._replace(columns=MOST_PIXELS)


def pixels_near(rows: np.ndarray, read: np.ndarray, typical: np.ndarray, bound: float = NEAR) -> np.ndarray:
    """Return the share of pixels within so many deviations, of each image (n, k) and each of those read (m, k)."""
    varies = typical > 0
    off = np.abs(rows[:, None, varies] - read[None, :, varies]) / typical[varies]
    shares: np.ndarray = (off < bound).mean(2)
    return shares


def weights_view(opened: OpenedRun) -> ServerView:
    """Return what the server of a run reads of its clients' rows from the weights of the first round.

    By span where that is possible; by matching of the `MOST_MATCHED` clients with the fewest rows.

    Raises:
        RunError: the run is not of a kind that is played.
    """
    method = opened.method
    name = opened.settings.method.name
    if opened.spec.kind == "image" and isinstance(method, GradientMethod) and not method.context.summed:
        return images_view(opened)
    if opened.spec.kind != "vector" or not isinstance(method, GradientMethod) or method.context.summed:
        raise RunError(
            f"only messages of networks of tables and images are played, without sums: docs/privacy.md has {name!r}"
        )
    exchanges = sorted(first_exchanges(opened), key=lambda exchange: len(exchange.client.train))
    if f"{FIRST_NORM}.running_mean" not in exchanges[0].left.tensors:
        raise RunError(
            f"the messages of method {name!r} are not among those that are played: docs/privacy.md has these"
        )
    typical = typical_deviation(opened)
    views = []
    matched = 0
    for exchange in exchanges:
        rows = exchange.client.train.raw().double().numpy()
        read = rows[:0]
        by_span = SpanReading.possible(Sender.of(method, exchange))
        if by_span or matched < MOST_MATCHED:
            matched += not by_span
            read = rows_read(opened, exchange)
        view = compared(rows, read, rows.mean(0, keepdims=True), typical)
        views.append(view)
        how = "by span" if by_span else "by matching"
        told = f"{view.near:.0%} are near one that is read {how}" if len(read) else "they are not looked for"
        print(f"client {exchange.client.id}, {len(rows)} rows: {told}", file=sys.stderr, flush=True)
    return of_all_clients(views)


def network_view(opened: OpenedRun, clients: int) -> NetworkView:
    """Return what a server reads, in the first round of a run, of the rows of its first clients."""
    shares = []
    for exchange in first_exchanges(opened)[:clients]:
        rows = exchange.client.train.raw().double().numpy()
        drawn = np.random.default_rng(exchange.client.id).normal(rows.mean(0), rows.std(0), rows.shape)
        taken = (rows_read(opened, exchange), np.broadcast_to(rows.mean(0), rows.shape), drawn)
        shares.append([share for read in taken for share in shares_near(opened, exchange, read)])
    return NetworkView._make(np.mean(shares, 0).tolist())


def shares_near(opened: OpenedRun, exchange: Exchange, read: np.ndarray) -> tuple[float, float]:
    """Return the share of a client's rows that some row of (n, k) is near, and of values that the same row is near."""
    rows = exchange.client.train.raw().double().numpy()
    typical = typical_deviation(opened)
    near = distances(rows, read, typical).min(1) < NEAR
    values = np.abs(read - rows) < NEAR * typical
    return float(near.mean()), float(values.mean())


def measure() -> dict[str, Any]:
    """Return the shares of each seed, by case and number of rows; keep them as they come, and go on where they end."""
    figures: dict[str, Any] = {}
    if FILE.exists():
        figures = json.loads(FILE.read_text())
    played = [(rows, case, changes) for rows in ATTACKED for case, changes in CASES.items()]
    played += [(2, f"`{name}`", {"method": {"name": name}}) for name in FAMILY]
    for rows, case, changes in played:
        by_rows = figures.setdefault(case, {})
        if str(rows) not in by_rows:
            views = [network_view(opened_run(changes, rows, seed), ATTACKED[rows]) for seed in SEEDS]
            by_rows[str(rows)] = [
                {name: float(f"{share:.4g}") for name, share in view._asdict().items()} for view in views
            ]
            print(case, rows, by_rows[str(rows)], flush=True)
            FILE.write_text(json.dumps(figures, indent=1) + "\n")
    for case, changes in IMAGE_CASES.items():
        of_case = figures.setdefault(IMAGES, {}).setdefault(case, [])
        for seed in range(len(of_case), len(SEEDS)):
            of_case.append(pixels_read(opened_run(changes, 2, seed, "digits")))
            print(case, of_case[-1], flush=True)
            FILE.write_text(json.dumps(figures, indent=1) + "\n")
    return figures


def pixels_read(opened: OpenedRun) -> dict[str, float]:
    """Return the shares of the pixels of a run's first client that a server reads, and guesses by their mean."""
    exchange = first_exchanges(opened)[0]
    rows = exchange.client.train.raw().double().flatten(1).numpy()
    typical = typical_deviation(opened)
    taken = (rows_read(opened, exchange), rows.mean(0, keepdims=True))
    shares = [round(float(pixels_near(rows, read, typical).max(1).mean()), 4) for read in taken]
    return dict(zip(PIXELS, shares, strict=True))


def table(figures: Mapping[str, Any]) -> str:
    """Return shares of rows that are read, the mean of the seeds and the largest, and the mean share of values."""
    body = []
    for rows in map(str, SHOWN):
        cells = [cell(figures[case][rows], "near", "values") for case in CASES]
        body.append([rows, *cells, cell(figures[GUESSED][rows], "guessed", "guessed_values")])
    family = ", ".join(
        f"`{name}` {np.mean([view['near'] for view in figures[f'`{name}`']['2']]):.0%}" for name in FAMILY
    )
    shares = markdown_table(["rows read (up to), values", *CASES, "guessed"], body)
    images = [(case, seed) for case, seeds in figures[IMAGES].items() for seed in seeds]
    pixels = [f"{case} {np.mean([seed['read'] for of, seed in images if of == case]):.0%}" for case in IMAGE_CASES]
    guessed = f"guessed {np.mean([seed['guessed'] for _, seed in images]):.0%}"
    return f"{shares}\n\nTwo rows, also: {family}. Two images, pixels: {', '.join([*pixels, guessed])}."


def cell(views: list[dict[str, float]], rows: str, values: str) -> str:
    """Return the mean and the largest share of rows, and the mean share of values."""
    shares = [view[rows] for view in views]
    read = f"{np.mean(shares):.0%}"
    if any(shares):
        read += f" ({max(shares):.0%})"
    return f"{read}, {np.mean([view[values] for view in views]):.0%}"


def page_with_table(page: str) -> str:
    """Return the text of the page with the table between the marks made again."""
    return between(page, BEGIN, END, table(json.loads(FILE.read_text())))


if __name__ == "__main__":
    measure()
    PAGE.write_text(page_with_table(PAGE.read_text()))
