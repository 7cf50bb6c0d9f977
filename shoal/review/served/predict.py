"""The clusters of new samples under a finished run's model: images in a folder, or the rows of a table.

Images are decoded like those of a user's own data sets, and converted to the form of the set on which the model was
trained: grey or in colour, and of its size. Unusable images are listed with their reasons.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from shoal.core.errors import DataError, first_of, short_text, shown
from shoal.data.intake.array_files import float32_blocks, is_array_file, open_array_file
from shoal.data.intake.folder_files import find_images
from shoal.data.intake.image_decoding import CONVERTED, Unusable, decode, decode_with_changes, why_not_read
from shoal.data.intake.images import GREY_IN_COLOUR, RejectedFile, in_form, listing, note_left_out
from shoal.data.intake.own_windows import new_windows
from shoal.data.intake.spelling import tidy
from shoal.data.intake.table_coding import TableCoding, encode
from shoal.data.intake.tables import SUFFIXES, read_table, separator_hint
from shoal.data.sets.csv_file import write_csv
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import DataSpec
from shoal.engine.store.client_names import client_names
from shoal.engine.store.codec import load_tensors
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.store.status import FINISHED
from shoal.methods.contract.message import Tensors
from shoal.methods.features.vectors import SITE_OFFSET
from shoal.methods.scores.assignment import nearest_centres
from shoal.models.frozen import FrozenEncoder, encode_images, frozen_encoder
from shoal.review.pages.cluster_sheets import by_certainty, captions
from shoal.review.pages.contact_sheet import Block, draw_sheet, thumbnail
from shoal.review.results.clusters import CENTRES, cluster_facts, read_cluster_tensors
from shoal.review.results.served_method import CLIENT, SITE_SAMPLES, served_method, site_by_site, tell_offset
from shoal.review.results.stable_names import with_names, with_stable_numbers
from shoal.review.results.summary import counted

ODD_SIZES = ("as-set", "skip", "resize")
"""What becomes of images of another size."""
TABLES = (".parquet", ".csv", ".csv.gz")
"""Suffixes of tables that are written."""
IMAGES_PER_BATCH = 256
ROWS_PER_BATCH = 4096
"""Rows of a table or of an array in a batch."""


@dataclass(frozen=True)
class PredictedClusters:
    """The clusters of new samples.

    Attributes:
        table: a row a sample: file (of images) or row (of tables), cluster, confidence and, with centres, distance; of
            a night's run the cluster's name (cluster_id); on request the embedding, float32: the model's features, in
            whose space the centres lie, a column a dimension, `embedding_0` and so on.
        skipped: images that were not used, and why.
        intake: samples that were taken, adapted and left out, as in `shoal data add`.
    """

    table: pd.DataFrame
    skipped: list[RejectedFile]
    intake: Intake = field(default_factory=Intake)


class Predictor:
    """The model of a finished run for new samples; the run's data set need not be on this machine.

    Args:
        run: the run's folder.
        embedding: whether tables have the columns of the embedding.

    Attributes:
        has_offsets: whether sites differ by offsets (`at_site`).

    Raises:
        RunError: the run is not finished, or has no clusters of samples.
        StoreError: a file of the model is damaged.
    """

    def __init__(self, run: RunFolder, embedding: bool = False) -> None:
        status = run.status()
        if status.state != FINISHED:
            raise RunError(
                f"run {run.name} is not finished ({status.state} after round {status.round}): finish it with "
                f"`shoal run --resume {run.name}`, then predict"
            )
        facts = cluster_facts(run)
        if facts is None:
            reasons = [event.message for event in run.events() if event.kind == "clusters_skipped"]
            why = [f"it has no cluster table yet, which `shoal run --resume {run.name}` writes", *reasons][-1]
            raise RunError(f"run {run.name} cannot give new samples a cluster: {why}")
        centres = read_cluster_tensors(run, CENTRES)
        checkpoint = read_state(run)
        self.embedding = embedding
        self.clusters = facts.clusters
        self.names = facts.names
        self.data = facts.data
        self.spec = facts.data.spec
        images = facts.data.embedded or facts.data
        self.image_spec = images.spec
        self.on_odd = images.on_odd
        method = served_method(run.settings(), self.spec, run.lineage().encoder_sha256)
        self._predict = method.predictor(checkpoint.judged)
        self._run = run
        self._memories = checkpoint.memory_index
        self._site_predictor = partial(method.site_predictor, checkpoint.judged)
        self.has_offsets = method.uses_offsets(checkpoint.judged)
        self._centres = None if centres is None else centres["centres"]

    def takes_images(self, source: Path) -> bool:
        """Return whether new samples in a folder or a file are images; vectors of an encoder may also be a table."""
        is_table = source.is_file() and source.name.lower().endswith(SUFFIXES)
        return self.image_spec.kind == "image" and not (self.data.embedded is not None and is_table)

    def assign(self, x: np.ndarray) -> pd.DataFrame:
        """Return a row a sample (n, *shape) in the set's stored dtype: `assign_array` without checks and rows.

        Images uint8 (n, channels, height, width) are encoded first if the set is.
        """
        with torch.no_grad():
            prediction = self._predict(self._batch(x))
        if self._centres is None:
            confidence = prediction.soft.float().gather(1, prediction.cluster[:, None]).squeeze(1).nan_to_num(nan=0.0)
            columns = {"cluster": prediction.cluster, "confidence": confidence}
        else:
            columns = nearest_centres(prediction.embedding, self._centres)._asdict()
        table = pd.DataFrame({name: values.numpy() for name, values in columns.items()})
        if self.names is not None:
            table = with_names(table, self.names)
        if self.embedding:
            h = prediction.embedding.flatten(1).float().cpu().numpy()
            table = table.join(pd.DataFrame(h).add_prefix("embedding_"))
        return table

    def _batch(self, x: np.ndarray) -> torch.Tensor:
        if x.ndim > 2 and self.encoder is not None:
            x = encode_images(self.encoder, x)
        batch = torch.tensor(x, dtype=torch.float32)
        return batch / 255 if self.spec.kind == "image" else batch

    def memory_of(self, client: str) -> Tensors:
        """Return the private memory of a client of the run, by its name; empty where none is here with its offset.

        Raises:
            StoreError: its file is damaged.
        """
        names = client_names(self._run)
        if client not in names:
            return {}
        files = self._memories.client(names.index(client))
        if files.memory is None or not (self._run.path / files.memory).exists():
            return {}
        memory, _ = load_tensors(self._run.path / files.memory, sha256=files.sha256[files.memory])
        return memory if SITE_OFFSET in memory else {}

    def at_site(self, x: np.ndarray, memory: Tensors) -> Predictor:
        """Return the model for samples of one site, where sites have offsets.

        Args:
            x: of the site, as of `assign_array`; the first `ROWS_PER_BATCH` tell its offset.
            memory: the site's, which tells it better; may be empty.
        """
        other = copy.copy(self)
        with torch.no_grad():
            other._predict = self._site_predictor(self._batch(x[:ROWS_PER_BATCH]), memory)
        return other

    @cached_property
    def encoder(self) -> FrozenEncoder | None:
        """The encoder that made the vectors of the run's set of images; None where no encoder made them.

        Raises:
            EncoderError: it is not installed, or has other weights than then.
        """
        if self.data.embedded is None:
            return None
        version = self.data.embedded.encoder
        return frozen_encoder(version.name, version.sha256)

    def assign_array(self, x: np.ndarray) -> pd.DataFrame:
        """Return a row a sample: row, cluster, confidence, with centres distance, and on request the embedding.

        Args:
            x: samples (n, *shape) in the form of the set: images uint8 (n, channels, height, width) or, where grey, (n,
                height, width); vectors float (n, features). A set that was made of images takes both.

        Raises:
            DataError: another shape or type, no sample, or values that are not finite.
        """
        x = np.ascontiguousarray(x)
        spec = self.spec
        if x.ndim > 2:
            spec = self.image_spec
        if spec.kind == "image" and x.ndim == 3 and spec.shape[0] == 1:
            x = x[:, None]
        check_array(x, spec)
        if spec.kind != "image":
            x = x.astype(np.float32)
        batches = np.split(x, range(ROWS_PER_BATCH, len(x), ROWS_PER_BATCH))
        table = pd.concat(map(self.assign, batches), ignore_index=True)
        table.insert(0, "row", np.arange(len(table)))
        return table


def check_array(x: np.ndarray, spec: DataSpec) -> None:
    """Refuse an array that does not hold samples of a set.

    Args:
        x: the array.
        spec: of the set.

    Raises:
        DataError: another shape or type, no sample, or values that are not finite.
    """
    if x.shape[1:] != spec.shape or not len(x):
        raise DataError(f"the array has shape {x.shape}, expected (n, {', '.join(map(str, spec.shape))}) with n >= 1")
    if spec.kind == "image" and x.dtype != np.uint8:
        raise DataError(f"the array is {x.dtype}, expected images as uint8, 0 to 255")
    if x.dtype.kind not in "fiu":
        raise DataError(f"the array is {x.dtype}, expected numbers")
    if not np.isfinite(x).all():
        raise DataError("the array holds values that are not finite: replace or remove these samples")


def predict(
    run: RunFolder,
    source: Path,
    on_odd: str = "as-set",
    embedding: bool = False,
    only: Collection[str] | None = None,
) -> PredictedClusters:
    """Return the clusters of new samples.

    Args:
        run: a finished run.
        source: for a model of images, a folder of images at any depth, or one image; for a model of vectors, a table
            with the set's feature columns (Parquet or CSV), or a file with an array of vectors (.npy and others).
        on_odd: how to treat images of another size: skip or resize; as-set: resize where the set was made that way.
        embedding: whether the table has the columns of the embedding.
        only: of a folder of images, only these paths below it; then all of them may be unusable. None: all images.

    Raises:
        RunError, StoreError: see `Predictor`.
        DataError: `source` does not exist, no image can be used, or the table's features do not fit.
    """
    if on_odd not in ODD_SIZES:
        raise DataError(f"--on-odd is {on_odd!r}, expected one of {', '.join(ODD_SIZES)}")
    predictor = Predictor(run, embedding)
    if not source.exists():
        raise DataError(f"{source} does not exist: give a folder of images, or a table")
    if on_odd == "as-set":
        on_odd = predictor.on_odd
    if predictor.takes_images(source):
        return _predict_images(predictor, source, on_odd, only)
    if source.is_file() and is_array_file(source):
        return _predict_vectors(predictor, source)
    return _predict_table(predictor, source)


def _predict_images(predictor: Predictor, source: Path, on_odd: str, only: Collection[str] | None) -> PredictedClusters:
    intake = Intake()
    root = folder_of(source)
    names = images_in(source, predictor.image_spec.name, intake) if only is None else sorted(only)
    if not names:
        seen = intake.summary()
        raise DataError(
            f"no image in {source}: expected files such as .png or .jpg at any depth" + (f" ({seen})" if seen else "")
        )
    skipped: list[RejectedFile] = []
    parts = []
    for site, of_site in itertools.groupby(names, site_of):
        model = None
        while batch := list(itertools.islice(of_site, IMAGES_PER_BATCH)):
            images = {}
            for file in batch:
                try:
                    images[file] = read_image(root, file, predictor.image_spec, on_odd, intake)
                except Unusable as error:
                    skipped.append(RejectedFile(file, str(error), error.kind))
            if images:
                x = np.stack(list(images.values()))
                model = model or site_model(predictor, x, site, intake)
                table = model.assign(x)
                table.insert(0, "file", list(images))
                parts.append(table)
    if not parts and only is None:
        raise DataError(f"none of the {len(names)} images in {source} can be used:\n{listing(skipped)}")
    note_left_out(skipped, intake)
    table = pd.concat(parts or [no_samples()], ignore_index=True)
    intake.take("files", len(table))
    return PredictedClusters(table, skipped, intake)


def no_samples() -> pd.DataFrame:
    """Return the table of no sample."""
    return pd.DataFrame(columns=["file", "cluster", "confidence"])


def folder_of(source: Path) -> Path:
    """Return the folder of images, or that in which a single one lies."""
    if source.is_file():
        return source.parent
    return source


def site_of(file: str) -> str:
    """Return the folder of an image that stands for its site; empty where it lies in none."""
    return file.rpartition("/")[0].split("/")[0]


def _predict_table(predictor: Predictor, source: Path) -> PredictedClusters:
    spec = predictor.spec
    expected = int(np.prod(spec.shape))
    if source.is_dir() or not source.name.lower().endswith(SUFFIXES):
        raise DataError(
            f"{source} is not a table: the model was trained on the {spec.kind} data of {spec.name!r}; give a Parquet "
            f"or CSV file with its {expected} features (of windows: its channels), or a file with an array of vectors"
        )
    intake = Intake()
    data = predictor.data
    if data.windows is not None:
        windows, names = new_windows(source, data.windows, intake)
        assigned = predictor.assign_array(windows)
        assigned.insert(1, "window", names)
        return PredictedClusters(assigned, [], intake)
    table = read_table(source, intake=intake)
    intake.see("columns", len(table.columns))
    coding = data.coding or TableCoding(tuple(map(tidy, data.features or table.columns)))
    if len(coding.features()) != expected:
        raise DataError(
            f"{source} has {len(table.columns)} columns, expected only the {expected} features of {spec.name!r}"
        )
    missing = [shown(name) for name in coding.columns if name not in table.columns]
    if missing:
        raise DataError(
            f"{source} lacks {len(missing)} of the {len(coding.columns)} columns of {spec.name!r}: "
            f"{first_of(missing)}{separator_hint(table)}"
        )
    others = table.columns.difference(coding.columns, sort=False)
    for column in others:
        intake.leave_out("column that is not a feature of the set", str(column))
    clients = np.full(len(table), "")
    if CLIENT in others:
        clients = table[CLIENT].astype(str).to_numpy()
    x, kept = encode(table, coding, source, intake)
    intake.take("columns", len(coding.columns))
    intake.see("rows", len(kept))
    intake.take("rows", len(x))
    assigned = by_client(predictor, x.reshape(len(x), *spec.shape), clients[kept], intake)
    assigned["row"] = np.flatnonzero(kept)
    return PredictedClusters(assigned, [], intake)


def by_client(predictor: Predictor, x: np.ndarray, clients: np.ndarray, intake: Intake) -> pd.DataFrame:
    """Return the rows of `assign_array`, each by the model for its client.

    Args:
        predictor: of the run.
        x: samples (n, *shape).
        clients: the name of each sample's client (n,).
        intake: see `site_model`.
    """
    if not predictor.has_offsets:
        return predictor.assign_array(x)
    return site_by_site(
        clients, lambda client, rows: site_model(predictor, x[rows], client, intake).assign_array(x[rows])
    )


def site_model(predictor: Predictor, x: np.ndarray, site: str, intake: Intake) -> Predictor:
    """Return the model for samples of one site: less its offset, where the run has offsets and one is known or told.

    Args:
        predictor: of the run.
        x: samples of the site.
        site: its name; empty: nobody knows it.
        intake: gets a line that says which.
    """
    if not predictor.has_offsets:
        return predictor
    memory = predictor.memory_of(site)
    if not memory and not tell_offset(site, len(x)):
        intake.note(f"site without a name or {SITE_SAMPLES} samples, whose offset is not known", site or "-")
        return predictor
    intake.adapt(f"site whose offset was {'known' if memory else 'estimated'} and taken away", site)
    return predictor.at_site(x, memory)


def _predict_vectors(predictor: Predictor, source: Path) -> PredictedClusters:
    """Return the clusters of the vectors in a file of arrays, block by block."""
    spec = predictor.spec
    file = open_array_file(source)
    rows, width = file.x.shape
    expected = int(np.prod(spec.shape))
    if width != expected:
        raise DataError(f"{source} has vectors of {width} numbers, expected {expected}, as {spec.name!r} has")
    intake = Intake()
    parts = [predictor.assign_array(x.reshape(len(x), *spec.shape)) for x in float32_blocks(file)]
    intake.see("rows", rows)
    intake.take("rows", rows)
    table = pd.concat(parts, ignore_index=True)
    table["row"] = table.index
    return PredictedClusters(table, [], intake)


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table of predictions as Parquet or CSV, by the file's suffix.

    Raises:
        DataError: the suffix is another one (`check_table`), or the file cannot be written.
    """
    check_table(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name.endswith(".parquet"):
            table.to_parquet(path, index=False)
        else:
            write_csv(table, path)
    except (OSError, UnicodeError) as error:
        raise DataError(f"{path} could not be written: {short_text(error)}") from None


def check_table(path: Path) -> None:
    """Refuse a file name with a suffix of neither Parquet nor CSV, before any work.

    Raises:
        DataError: its suffix is another one.
    """
    if not path.name.endswith(TABLES):
        raise DataError(f"--out {path}: expected a name that ends in {', '.join(TABLES)}")


def check_images(predicted: PredictedClusters) -> None:
    """Refuse a contact sheet of samples that are not images.

    Raises:
        DataError: says what the samples are.
    """
    if "file" in predicted.table:
        return
    what = "rows of a table"
    if "window" in predicted.table:
        what = "windows of time series"
    raise DataError(f"--sheet draws images, and these samples are {what}: leave it out")


def predicted_sheet(predicted: PredictedClusters, source: Path, path: Path) -> Path:
    """Draw one contact sheet of new images, a block a cluster: the most certain first, then the least certain.

    Raises:
        DataError: the samples are not images.
    """
    check_images(predicted)
    root = folder_of(source)
    blocks = []
    for cluster, rows in with_stable_numbers(predicted.table).groupby("cluster"):
        certain, unsure = by_certainty(rows)
        drawn = pd.concat([certain, unsure])
        # Small at once, so that photos at full size do not fill the memory.
        decoded = (np.atleast_3d(decode(root / file)).transpose(2, 0, 1) for file in drawn["file"])
        images = [thumbnail(pixels).transpose(2, 0, 1) for pixels in decoded]
        heading = f"cluster {cluster}: {counted(len(rows), 'image')}"
        if len(drawn) < len(rows):
            heading += f", the {len(certain)} most certain and the {len(unsure)} least certain"
        blocks.append(Block(heading, images, captions(drawn)))
    title = f"{counted(len(predicted.table), 'new image')} in {counted(len(blocks), 'cluster')}"
    return draw_sheet(path, title, [f"from {source.name}"], blocks)


def read_image(root: Path, file: str, spec: DataSpec, on_odd: str, intake: Intake) -> np.ndarray:
    """Return an image in the form of the set's, uint8 (channels, height, width), and note every conversion.

    A coloured image becomes grey where the set is grey (ITU-R 601 luma), a grey one gets three equal planes where the
    set is coloured.

    Args:
        root: the folder of the files.
        file: the path of the image below it.
        spec: of the set.
        on_odd: how to treat an image of another size: skip or resize it.
        intake: takes the notes.

    Raises:
        Unusable: the image cannot be read, or has another size and `on_odd` is not resize.
    """
    pixels, changes = decode_with_changes(root / file)
    channels, height, width = spec.shape
    expected = f"{height}x{width} (height x width)"
    size = f"{pixels.shape[0]}x{pixels.shape[1]}"
    odd = pixels.shape[:2] != (height, width)
    if odd and on_odd != "resize":
        raise Unusable(
            f"odd-sized: {size}, the set's images are {expected}: --on-odd resize, or on_odd: resize of an "
            "assignment, fits it",
            f"not {expected}",
        )
    if changes:
        intake.adapt(CONVERTED, file, changes)
    if odd:
        intake.adapt(f"resized to {expected}", file, f"from {size}")
    if pixels.ndim == 3 and channels == 1:
        intake.adapt("made grey, as the set is", file)
    if pixels.ndim == 2 and channels == 3:
        intake.adapt(GREY_IN_COLOUR, file)
    return in_form(pixels, spec.shape)


def images_in(source: Path, data: str, intake: Intake) -> list[str]:
    """Return the paths of the images in a folder, or the name of a single file.

    Args:
        source: the folder or the file.
        data: the name of the set that the model was trained on.
        intake: takes the notes.

    Raises:
        DataError: the file is not an image that can be read.
    """
    if not source.is_file():
        return find_images(source, intake)
    intake.see("files")
    reason = why_not_read(source)
    if reason is not None:
        raise DataError(f"{source} is not a usable image ({reason}): the model was trained on the images of {data!r}")
    return [source.name]
