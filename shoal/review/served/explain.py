"""One cluster of a finished run over its clients: what share of whose data it holds, how surely, and which samples.

Read from the run's cluster table, so that nothing is computed anew and the model need not be loaded.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw

from shoal.core.errors import DataError
from shoal.data.partition.table import load_partition
from shoal.data.prepared import open_prepared
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.review.pages.cluster_sheets import about, images_of, shortened, thumbnail
from shoal.review.results.clusters import cluster_facts, read_clusters
from shoal.review.results.fonts import font
from shoal.review.results.summary import counted

CERTAIN, UNSURE = 8, 4
"""How many samples of each client are shown: the most certain, and of the others the least certain."""
CLIENTS = 40
"""At most so many clients have a row of images, those with most samples in the cluster."""
NOBODY = "(test part)"
"""Whose samples of a common test part are: no client's."""
KEPT = ("client_name", "part", "sample", "file", "label", "confidence", "distance")
_GAP, _LEFT, _SPLIT = 6, 210, 22
_INK, _GREY, _LINE = (30, 30, 30), (110, 110, 110), (205, 205, 205)


@dataclass(frozen=True)
class Explained:
    """One cluster over the clients.

    Attributes:
        run: its name.
        cluster: its number.
        samples: how many it has, of `total` in the run.
        lines: what is known of it as a whole, in words.
        clients: a row a client that has samples in it, the largest first: client, samples, share of the client's data,
            share of the cluster, mean confidence, and with labels mostly label and label share.
        shown: a row a sample that is shown: client_name, shown (certain or unsure), part, sample, file, label,
            confidence and, with centres, distance. Of each client the most certain, most certain first, then the least
            certain, least certain last.
        kind: image, vector or text.
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
        """Which cluster, and its size."""
        return f"Cluster {self.cluster}: {self.samples:,} of {self.total:,} samples ({self.samples / self.total:.1%})"

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "run": str(self.run.path),
            "cluster": self.cluster,
            "samples": self.samples,
            "of": self.total,
            "clients": records(self.clients),
            "shown": records(self.shown),
        }

    def draw(self, path: str | Path) -> Path:
        """The contact sheet as a PNG whose folder is made: a row of images a client, as its client holds them.

        Raises:
            DataError: the samples are no images, the path is no .png, or it cannot be written.
        """
        path = Path(path)
        if path.suffix.lower() != ".png":
            raise DataError(f"{path}: expected a name that ends in .png")
        sheet = self.sheet()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            sheet.save(path, format="PNG", optimize=True)
        except OSError as error:
            raise DataError(f"{path} could not be written: {error.strerror or error}") from None
        return path

    def sheet(self) -> Image.Image:
        """The contact sheet.

        Raises:
            DataError: the samples are no images.
        """
        if self.kind != "image":
            raise DataError(f"the samples of run {self.run.name} are {self.kind}s: only images can be drawn")
        prepared = open_prepared(self.run.folder_of("data"))
        image_of = images_of(prepared, load_partition(self.run.folder_of("partition")))
        rows = []
        for row in self.clients.head(CLIENTS).to_dict("records"):
            own = self.shown[self.shown["client_name"] == row["client"]]
            parts = [own[own["shown"] == which] for which in ("certain", "unsure")]
            images = [[image_of(*where) for where in zip(p["part"], p["sample"], strict=True)] for p in parts]
            captions = [[caption(sample) for sample in p.to_dict("records")] for p in parts]
            name = str(row["client"])
            rows.append(_Row(f"client {name}" if name.isdigit() else name, words_on(row), images, captions))
        left = len(self.clients) - len(rows)
        last = f"and {left:,} more clients, with fewer samples in this cluster" if left > 0 else ""
        return _drawn(self.title, self.lines, rows, last)

    def _repr_html_(self) -> str:
        """What a notebook shows: the clients' table, and the sheet where there are images."""
        shown = f"<p><b>{html.escape(self.title)}</b></p>{self.clients.to_html(index=False, float_format='%.3f')}"
        if self.kind != "image":
            return shown
        with io.BytesIO() as file:
            self.sheet().save(file, format="PNG", optimize=True)
            return f"{shown}<img src='data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}'>"


def explain(run: RunFolder, cluster: int) -> Explained:
    """What a finished run's cluster holds, client by client.

    Args:
        run: a finished run with a cluster table.
        cluster: the number of one of its clusters.

    Raises:
        RunError: the run has no cluster table, no such cluster, or nothing in it. StoreError: the table is damaged.
    """
    facts = cluster_facts(run)
    table = read_clusters(run)
    if facts is None or table is None:
        raise RunError(
            f"run {run.name} has no cluster table to explain: `shoal run --resume {run.name}` writes it where samples "
            "have clusters"
        )
    rows = table[table["cluster"] == cluster]
    if not 0 <= cluster < facts.clusters:
        raise RunError(f"run {run.name} has no cluster {cluster}: its clusters are 0 to {facts.clusters - 1}")
    if not len(rows):
        raise RunError(f"cluster {cluster} of run {run.name} is empty: no sample is in it")
    names = table["client_name"].fillna(NOBODY).astype(str)
    table, rows = table.assign(client_name=names), rows.assign(client_name=names[rows.index])
    clients = by_client(table, rows)
    shown = pd.concat([certain_and_unsure(rows[rows["client_name"] == name]) for name in clients["client"]])
    lines = tuple(about(rows))
    return Explained(run, cluster, len(rows), len(table), lines, clients, shown, facts.data.kind)


def by_client(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The table of `Explained.clients`.

    Args:
        table: all samples of the run.
        rows: those of the cluster.
    """
    groups = rows.groupby("client_name", sort=False)
    found = pd.DataFrame({"samples": groups.size(), "mean_confidence": groups["confidence"].mean()})
    found.insert(1, "share_of_client", found["samples"] / table["client_name"].value_counts()[found.index])
    found.insert(2, "share_of_cluster", found["samples"] / len(rows))
    if "label" in rows and rows["label"].notna().any():
        most = groups["label"].agg(lambda labels: labels.mode().iloc[0] if labels.notna().any() else None)
        share = [
            float((rows.loc[groups.groups[name], "label"] == label).mean()) if label is not None else np.nan
            for name, label in most.items()
        ]
        found["mostly_label"], found["label_share"] = most, share
    found = found.rename_axis("client").reset_index()
    # The common test part last, whatever its size.
    found["_nobody"] = found["client"] == NOBODY
    found = found.sort_values(["_nobody", "samples"], ascending=[True, False], kind="stable")
    return found.drop(columns="_nobody").reset_index(drop=True)


def certain_and_unsure(rows: pd.DataFrame) -> pd.DataFrame:
    """Of one client's samples of a cluster those that are shown, with the column `shown`."""
    ordered = rows.sort_values("confidence", ascending=False, kind="stable")
    first = ordered[:CERTAIN].assign(shown="certain")
    last = ordered[CERTAIN:][-UNSURE:].assign(shown="unsure")
    both = pd.concat([first, last])
    columns = [name for name in KEPT if name in both and both[name].notna().any()]
    return both[["client_name", "shown", *(name for name in columns if name != "client_name")]]


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as JSON values: what is missing is None."""
    return [
        {
            str(key): None if value is pd.NA or (isinstance(value, float) and np.isnan(value)) else value
            for key, value in row.items()
        }
        for row in table.astype(object).to_dict("records")
    ]


def caption(sample: dict[Any, Any]) -> tuple[str, str]:
    """What stands below an image: its file's name, where it has one, and its confidence."""
    file = sample.get("file")
    return (Path(file).name if isinstance(file, str) else "", f"{sample['confidence']:.2f}")


def words_on(row: dict[Any, Any]) -> list[str]:
    """What stands beside a client's images."""
    words = [
        f"{counted(row['samples'], 'sample')}, {row['share_of_client']:.0%} of its data",
        f"mean confidence {row['mean_confidence']:.2f}",
    ]
    if isinstance(row.get("mostly_label"), str):
        words.append(f"mostly {row['mostly_label']} ({row['label_share']:.0%})")
    return words


@dataclass(frozen=True)
class _Row:
    """A client's row: its name, what stands below it, images and captions of certain and of unsure samples."""

    name: str
    words: list[str]
    images: list[list[np.ndarray]]
    captions: list[list[tuple[str, str]]]


def _drawn(title: str, lines: Sequence[str], rows: list[_Row], last: str) -> Image.Image:
    """The sheet: what is known of the cluster, then a row a client, certain images left and unsure ones right."""
    thumbs = [[[thumbnail(image) for image in part] for part in row.images] for row in rows]
    every = [thumb for row in thumbs for part in row for thumb in part]
    named = any(name for row in rows for part in row.captions for name, _ in part)
    width = max([thumb.width for thumb in every] + [72 if named else 48])
    height = max(thumb.height for thumb in every)
    under = 28 if named else 15
    step = max(height + under, 19 + 16 * max(len(row.words) for row in rows)) + _GAP
    columns = [max(len(row.images[part]) for row in rows) for part in (0, 1)]
    starts = [_LEFT, _LEFT + columns[0] * (width + _GAP) + _SPLIT]
    right = starts[1] + columns[1] * (width + _GAP) if columns[1] else starts[1] - _SPLIT
    top = 34 + 17 * len(lines) + 24
    size = (max(right + _GAP, 560), top + step * len(rows) + (22 if last else 4))
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((_GAP, _GAP), shortened(title, font(17), size[0] - 2 * _GAP, end=True), _INK, font(17))
    for number, line in enumerate(lines):
        draw.text((_GAP, 30 + 17 * number), shortened(line, font(12), size[0] - 2 * _GAP, end=True), _GREY, font(12))
    for words, start, count in zip(("most certain", "least certain"), starts, columns, strict=True):
        if count:
            draw.text((start, top - 19), words, _INK, font(12))
    if columns[1]:
        middle = starts[1] - _SPLIT // 2 - _GAP // 2
        draw.line((middle, top - 17, middle, top + step * len(rows) - _GAP), _LINE)
    for number, (row, parts) in enumerate(zip(rows, thumbs, strict=True)):
        up = top + number * step
        draw.line((_GAP, up - 3, size[0] - _GAP, up - 3), _LINE)
        draw.text((_GAP, up + 1), shortened(row.name, font(13), _LEFT - 2 * _GAP, end=True), _INK, font(13))
        for place, words in enumerate(row.words):
            draw.text(
                (_GAP, up + 19 + 16 * place), shortened(words, font(11), _LEFT - 2 * _GAP, end=True), _GREY, font(11)
            )
        for start, part, captions in zip(starts, parts, row.captions, strict=True):
            for place, (thumb, (name, sure)) in enumerate(zip(part, captions, strict=True)):
                left = start + place * (width + _GAP)
                sheet.paste(thumb, (left + (width - thumb.width) // 2, up + (height - thumb.height) // 2))
                if named:
                    draw.text((left, up + height + 1), shortened(name, font(10), width), _INK, font(10))
                draw.text((left, up + height + under - 14), sure, _GREY, font(10))
    if last:
        draw.text((_GAP, top + step * len(rows)), last, _GREY, font(12))
    return sheet
