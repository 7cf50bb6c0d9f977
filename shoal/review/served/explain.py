"""One cluster of a finished run by client: shares of the clients' data, confidence, and samples.

Everything is read from the run's cluster table: nothing is computed again, and the model is not loaded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from shoal.core.errors import DataError
from shoal.data.sets.prepared import open_prepared
from shoal.engine.store.embedded import DRAWABLE_KINDS, images_behind
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.review.pages.cluster_sheets import about, block_of, by_certainty, images_of, named_clusters, why_not_drawn
from shoal.review.pages.contact_sheet import draw_sheet
from shoal.review.results.clusters import cluster_facts
from shoal.review.results.summary import counted

MAX_CERTAIN = 8
MAX_UNSURE = 4
"""Samples of each client that are shown: the most certain, and of the others the least certain."""
MAX_CLIENTS = 40
"""Clients that have a row of images, those with most samples in the cluster."""
TEST_PART = "(test part)"
"""Stands for the client of samples of a common test part, which no client holds."""
SHOWN_COLUMNS = ("client_name", "shown", "part", "sample", "file", "label", "confidence", "distance")


@dataclass(frozen=True)
class Explained:
    """One cluster by client.

    Attributes:
        run: the run's folder.
        cluster: its number.
        samples: its number of samples.
        total: number of samples in the run.
        lines: a description of the whole cluster.
        clients: a row a client that has samples in it, the largest first: client, samples, share of the client's data,
            share of the cluster, mean confidence, and with labels mostly label and label share.
        shown: a row a sample that is shown: client_name, shown (certain or unsure), part, sample, file, label,
            confidence and, with centres, distance. The most certain samples of each client come first, then its least
            certain ones, the least certain first.
        kind: image (also of images that an encoder made vectors of), vector or text.
    """

    run: RunFolder
    cluster: int
    samples: int
    total: int
    lines: tuple[str, ...]
    clients: pd.DataFrame
    shown: pd.DataFrame
    kind: str

    @property
    def title(self) -> str:
        """The cluster's number and its size."""
        return f"Cluster {self.cluster}: {self.samples:,} of {self.total:,} samples ({self.samples / self.total:.1%})"

    def to_json(self) -> dict[str, Any]:
        """Return the cluster as JSON."""
        return {
            "run": str(self.run.path),
            "cluster": self.cluster,
            "samples": self.samples,
            "of": self.total,
            "clients": records(self.clients),
            "shown": records(self.shown),
        }

    def draw(self, path: str | Path) -> Path:
        """Draw the contact sheet as a PNG: a block of images a client, each image as its client holds it.

        Raises:
            DataError: the samples cannot be drawn, or are not here any more, or the file cannot be written.
        """
        if self.kind not in DRAWABLE_KINDS:
            raise DataError(
                f"the samples of run {self.run.name} are {self.kind}s, and only images and windows can be drawn: leave "
                "out --out to see the table alone (in Python: `clients` and `shown`)"
            )
        prepared = open_prepared(self.run.folder_of("data"))
        images = images_behind(prepared)
        reason = why_not_drawn(self.run, prepared)
        if images is None or reason is not None:
            raise DataError(str(reason))
        image_of = images_of(images)
        shown = self.shown.set_index("client_name")
        blocks = [
            block_of(heading_of(row), shown.loc[[row["client"]]], image_of)
            for row in self.clients.head(MAX_CLIENTS).to_dict("records")
        ]
        order = f"of each client the {MAX_CERTAIN} most certain samples, then the {MAX_UNSURE} least certain ones"
        if len(self.clients) > MAX_CLIENTS:
            order += f"; {len(self.clients) - MAX_CLIENTS:,} more clients have fewer samples"
        try:
            return draw_sheet(Path(path), self.title, [*self.lines, order], blocks, MAX_CERTAIN + MAX_UNSURE)
        except OSError as error:
            raise DataError(f"{path} could not be written: {error.strerror or error}") from None


def explain(run: RunFolder, cluster: int) -> Explained:
    """Return what a cluster of a finished run holds, client by client.

    Args:
        run: a finished run with a cluster table.
        cluster: the number of one of its clusters, as in its report.

    Raises:
        RunError: the run has no cluster table, no such cluster, or nothing in it. StoreError: the table is damaged.
    """
    check_rows_here(run)
    facts = cluster_facts(run)
    table = named_clusters(run)
    if facts is None or table is None:
        raise RunError(
            f"run {run.name} has no cluster table: `shoal run --resume {run.name}` writes it where the method gives "
            "samples clusters"
        )
    if cluster not in facts.numbers:
        listed = ", ".join(map(str, sorted(facts.numbers)))
        raise RunError(f"run {run.name} has no cluster {cluster}: its clusters are {listed}")
    table["client_name"] = table["client_name"].fillna(TEST_PART).astype(str)
    rows = table[table["cluster"] == cluster]
    if not len(rows):
        raise RunError(f"cluster {cluster} of run {run.name} is empty: choose another one")
    clients = by_client(table, rows)
    shown = pd.concat([certain_and_unsure(rows[rows["client_name"] == name]) for name in clients["client"]])
    kind = "image" if facts.data.embedded else facts.data.spec.kind
    return Explained(run, cluster, len(rows), len(table), tuple(about(rows)), clients, shown, kind)


def check_rows_here(run: RunFolder) -> None:
    """Refuse a run whose rows are at sites.

    Raises:
        RunError: says where to look instead.
    """
    if run.lineage().sites:
        raise RunError(
            f"no place has all rows of run {run.name}: `shoal site report RUN` shows a site its own clusters, and what "
            "the server reads, you see on a run with the same settings on a set that is here"
        )


def by_client(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the table of `Explained.clients`.

    Args:
        table: all samples of the run.
        rows: those of the cluster.
    """
    groups = rows.groupby("client_name", sort=False)
    clients = groups["confidence"].agg(samples="size", mean_confidence="mean")
    clients.insert(1, "share_of_client", clients["samples"] / table["client_name"].value_counts()[clients.index])
    clients.insert(2, "share_of_cluster", clients["samples"] / len(rows))
    if "label" in rows and rows["label"].notna().any():
        labels = groups["label"].value_counts(normalize=True).rename("label_share").reset_index("label")
        most = labels.rename(columns={"label": "mostly_label"}).groupby(level=0).head(1)
        clients = clients.join(most)
    clients = clients.sort_values("samples", ascending=False, kind="stable").rename_axis("client")
    # The common test part comes last, even where it is large.
    return clients.sort_index(key=lambda names: names == TEST_PART, kind="stable").reset_index()


def certain_and_unsure(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the samples to show of one client's samples of a cluster, with the column `shown`."""
    most, least = by_certainty(rows, MAX_CERTAIN, MAX_UNSURE)
    both = pd.concat([most.assign(shown="certain"), least.assign(shown="unsure")])
    return both.filter(SHOWN_COLUMNS).dropna(axis=1, how="all")


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as JSON values: None stands for a missing one."""
    return list(json.loads(table.to_json(orient="records", double_precision=15)))


def heading_of(row: dict[Any, Any]) -> str:
    """Return the words above a client's images."""
    name = str(row["client"])
    if name.isdigit():
        name = f"client {name}"
    words = [
        f"{counted(row['samples'], 'sample')}, {row['share_of_client']:.0%} of its data",
        f"mean confidence {row['mean_confidence']:.2f}",
    ]
    if isinstance(row.get("mostly_label"), str):
        words.append(f"mostly {row['mostly_label']} ({row['label_share']:.0%})")
    return f"{name}: {'; '.join(words)}"
