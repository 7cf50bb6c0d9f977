"""One cluster of a finished run by client: shares of the clients' data, confidence, and samples.

Everything is read from the run's cluster table: nothing is computed again, and the model is not loaded.
"""

from __future__ import annotations

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
from shoal.data.sets.prepared import open_prepared
from shoal.engine.store.embedded import DRAWABLE_KINDS, images_behind, why_no_images
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.review.pages.cluster_sheets import about, draw_heading, fit_text, images_of, shown_confidence, thumbnail
from shoal.review.pages.pages import in_base64
from shoal.review.results.clusters import cluster_facts, read_clusters
from shoal.review.results.fonts import write
from shoal.review.results.stable_names import with_stable_numbers
from shoal.review.results.summary import counted

MAX_CERTAIN = 8
MAX_UNSURE = 4
"""Samples of each client that are shown: the most certain, and of the others the least certain."""
MAX_CLIENTS = 40
"""Clients that have a row of images, those with most samples in the cluster."""
TEST_PART = "(test part)"
"""Stands for the client of samples of a common test part, which no client holds."""
SHOWN_COLUMNS = ("client_name", "part", "sample", "file", "label", "confidence", "distance")
_GAP = 6
_LEFT = 210
_SPLIT = 22
_INK = (30, 30, 30)
_GREY = (110, 110, 110)
_LINE = (205, 205, 205)


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
            confidence and, with centres, distance. The most certain samples of each client come first, in falling
            confidence, then its least certain ones.
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
        """Draw the contact sheet as a PNG: a row of images a client, each image as its client holds it.

        Raises:
            DataError: the samples cannot be drawn, the path does not end in .png, or the file cannot be written.
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
        """Return the contact sheet.

        Raises:
            DataError: the samples are neither images nor windows.
        """
        if self.kind not in DRAWABLE_KINDS:
            raise DataError(
                f"the samples of run {self.run.name} are {self.kind}s, and only images and windows can be drawn: leave "
                "out --out to see the table alone (in Python: `clients` and `shown`)"
            )
        prepared = open_prepared(self.run.folder_of("data"))
        image_set = images_behind(prepared)
        if image_set is None:
            raise DataError(str(why_no_images(prepared)))
        image_of = images_of(image_set, load_partition(self.run.folder_of("partition")))
        rows = []
        for row in self.clients.head(MAX_CLIENTS).to_dict("records"):
            own = self.shown[self.shown["client_name"] == row["client"]]
            parts = [own[own["shown"] == kind] for kind in ("certain", "unsure")]
            images = [[image_of(*where) for where in zip(p["part"], p["sample"], strict=True)] for p in parts]
            captions = [[caption(sample) for sample in p.to_dict("records")] for p in parts]
            name = str(row["client"])
            if name.isdigit():
                name = f"client {name}"
            rows.append(_Row(name, words_on(row), images, captions))
        left = len(self.clients) - len(rows)
        last = ""
        if left > 0:
            last = f"and {left:,} more clients, with fewer samples in this cluster"
        return _Sheet(rows).draw(self.title, self.lines, last)

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the clients' table, and the sheet if there are images."""
        shown = f"<p><b>{html.escape(self.title)}</b></p>{self.clients.to_html(index=False, float_format='%.3f')}"
        if images_behind(open_prepared(self.run.folder_of("data"))) is None:
            return shown
        with io.BytesIO() as file:
            self.sheet().save(file, format="PNG", optimize=True)
            return f"{shown}<img src='data:image/png;base64,{in_base64(file.getvalue())}'>"


def explain(run: RunFolder, cluster: int) -> Explained:
    """Return what a cluster of a finished run holds, client by client.

    Args:
        run: a finished run with a cluster table.
        cluster: the number of one of its clusters, as in its report.

    Raises:
        RunError: the run has no cluster table, no such cluster, or nothing in it. StoreError: the table is damaged.
    """
    facts = cluster_facts(run)
    table = read_clusters(run)
    if facts is None or table is None:
        raise RunError(
            f"run {run.name} has no cluster table: `shoal run --resume {run.name}` writes it where the method gives "
            "samples clusters"
        )
    table = with_stable_numbers(table)
    rows = table[table["cluster"] == cluster]
    if cluster not in facts.numbers:
        listed = f"0 to {facts.clusters - 1}"
        if sorted(facts.numbers) != list(range(facts.clusters)):
            listed = ", ".join(map(str, sorted(facts.numbers)))
        raise RunError(f"run {run.name} has no cluster {cluster}: its clusters are {listed}")
    if not len(rows):
        raise RunError(f"cluster {cluster} of run {run.name} is empty: choose another one")
    names = table["client_name"].fillna(TEST_PART).astype(str)
    table = table.assign(client_name=names)
    rows = rows.assign(client_name=names[rows.index])
    clients = by_client(table, rows)
    shown = pd.concat([certain_and_unsure(rows[rows["client_name"] == name]) for name in clients["client"]])
    lines = tuple(about(rows))
    kind = "image" if facts.data.embedded else facts.data.kind
    return Explained(run, cluster, len(rows), len(table), lines, clients, shown, kind)


def by_client(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the table of `Explained.clients`.

    Args:
        table: all samples of the run.
        rows: those of the cluster.
    """
    groups = rows.groupby("client_name", sort=False)
    found = pd.DataFrame({"samples": groups.size(), "mean_confidence": groups["confidence"].mean()})
    found.insert(1, "share_of_client", found["samples"] / table["client_name"].value_counts()[found.index])
    found.insert(2, "share_of_cluster", found["samples"] / len(rows))
    if "label" in rows and rows["label"].notna().any():
        modes = groups["label"].agg(lambda labels: next(iter(labels.mode()), None))
        found["mostly_label"] = modes
        found["label_share"] = [
            np.nan if label is None else float((rows.loc[groups.groups[name], "label"] == label).mean())
            for name, label in modes.items()
        ]
    found = found.rename_axis("client").reset_index()
    # The common test part comes last, even where it is large.
    found["_last"] = found["client"] == TEST_PART
    found = found.sort_values(["_last", "samples"], ascending=[True, False], kind="stable")
    return found.drop(columns="_last").reset_index(drop=True)


def certain_and_unsure(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the samples to show of one client's samples of a cluster, with the column `shown`."""
    ordered = rows.sort_values("confidence", ascending=False, kind="stable")
    first = ordered[:MAX_CERTAIN].assign(shown="certain")
    last = ordered[MAX_CERTAIN:][-MAX_UNSURE:].assign(shown="unsure")
    both = pd.concat([first, last])
    columns = [name for name in SHOWN_COLUMNS if name in both and both[name].notna().any()]
    return both[["client_name", "shown", *(name for name in columns if name != "client_name")]]


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as JSON values: None stands for a missing one."""
    values = table.astype(object)
    return [
        {str(key): value for key, value in row.items()} for row in values.where(values.notna(), None).to_dict("records")
    ]


def caption(sample: dict[Any, Any]) -> tuple[str, str]:
    """Return the words below an image: its file's name, where it has one, and its confidence."""
    name = ""
    if isinstance(sample.get("file"), str):
        name = Path(sample["file"]).name
    return name, shown_confidence(sample["confidence"])


def words_on(row: dict[Any, Any]) -> list[str]:
    """Return the words beside a client's images."""
    words = [
        f"{counted(row['samples'], 'sample')}, {row['share_of_client']:.0%} of its data",
        f"mean confidence {row['mean_confidence']:.2f}",
    ]
    if isinstance(row.get("mostly_label"), str):
        words.append(f"mostly {row['mostly_label']} ({row['label_share']:.0%})")
    return words


@dataclass(frozen=True)
class _Row:
    """A client's row: its name, the words below it, images and captions of certain and of unsure samples."""

    name: str
    words: list[str]
    images: list[list[np.ndarray]]
    captions: list[list[tuple[str, str]]]


class _Sheet:
    """A contact sheet with a row a client, certain images on the left and unsure ones on the right.

    Args:
        rows: of the clients, at least one.
    """

    def __init__(self, rows: list[_Row]) -> None:
        self._rows = rows
        self._thumbs = [[[thumbnail(image) for image in part] for part in row.images] for row in rows]
        thumbs = [thumb for row in self._thumbs for part in row for thumb in part]
        self._named = any(name for row in rows for part in row.captions for name, _ in part)
        min_width, self._caption_height = (72, 28) if self._named else (48, 15)
        self._width = max([min_width, *(thumb.width for thumb in thumbs)])
        self._height = max(thumb.height for thumb in thumbs)
        words_height = 19 + 16 * max(len(row.words) for row in rows)
        self._step = max(self._height + self._caption_height, words_height) + _GAP
        self._columns = [max(len(row.images[part]) for row in rows) for part in (0, 1)]
        self._starts = [_LEFT, _LEFT + self._columns[0] * (self._width + _GAP) + _SPLIT]

    def draw(self, title: str, lines: Sequence[str], last: str) -> Image.Image:
        """Draw the title, a description of the cluster, the clients' rows, and a last line."""
        right = self._starts[1] + self._columns[1] * (self._width + _GAP) - _SPLIT * (not self._columns[1])
        top = 34 + 17 * len(lines) + 24
        bottom = top + self._step * len(self._rows)
        width = max(right + _GAP, 560)
        sheet = Image.new("RGB", (width, bottom + (22 if last else 4)), "white")
        draw = ImageDraw.Draw(sheet)
        draw_heading(draw, title, lines, width)
        self._draw_headings(draw, top, bottom)
        for number in range(len(self._rows)):
            up = top + number * self._step
            draw.line((_GAP, up - 3, width - _GAP, up - 3), _LINE)
            self._draw_words(draw, self._rows[number], up)
            self._draw_images(sheet, draw, number, up)
        if last:
            write(draw, (_GAP, bottom), last, 12, _GREY)
        return sheet

    def _draw_headings(self, draw: ImageDraw.ImageDraw, top: int, bottom: int) -> None:
        for words, start, count in zip(("most certain", "least certain"), self._starts, self._columns, strict=True):
            if count:
                write(draw, (start, top - 19), words, 12, _INK)
        if self._columns[1]:
            middle = self._starts[1] - _SPLIT // 2 - _GAP // 2
            draw.line((middle, top - 17, middle, bottom - _GAP), _LINE)

    def _draw_words(self, draw: ImageDraw.ImageDraw, row: _Row, up: int) -> None:
        width = _LEFT - 2 * _GAP
        write(draw, (_GAP, up + 1), fit_text(row.name, 13, width, end=True), 13, _INK)
        for place, words in enumerate(row.words):
            write(draw, (_GAP, up + 19 + 16 * place), fit_text(words, 11, width, end=True), 11, _GREY)

    def _draw_images(self, sheet: Image.Image, draw: ImageDraw.ImageDraw, number: int, up: int) -> None:
        row = self._rows[number]
        for start, thumbs, captions in zip(self._starts, self._thumbs[number], row.captions, strict=True):
            for place, (thumb, (name, confidence)) in enumerate(zip(thumbs, captions, strict=True)):
                left = start + place * (self._width + _GAP)
                sheet.paste(thumb, (left + (self._width - thumb.width) // 2, up + (self._height - thumb.height) // 2))
                if self._named:
                    write(draw, (left, up + self._height + 1), fit_text(name, 10, self._width), 10, _INK)
                write(draw, (left, up + self._height + self._caption_height - 14), confidence, 10, _GREY)
