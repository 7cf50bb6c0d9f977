"""The clusters of new samples under a finished run's model: images in a folder, or the rows of a table.

Images are decoded as those of own data sets are, and matched to the set the model was trained on: grey or in colour,
and of its size. What cannot be used is listed with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import pandas as pd
import torch

from shoal.core.errors import DataError
from shoal.data.csv_file import write_csv
from shoal.data.folder_files import find_images
from shoal.data.image_decoding import Unusable, decode, decode_with_changes
from shoal.data.images import Rejected, listing
from shoal.data.intake import Intake
from shoal.data.own_images import note_left_out
from shoal.data.spelling import tidy
from shoal.data.tables import features, read_table
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.store.status import FINISHED
from shoal.methods.contract.context import Context, MethodError
from shoal.methods.contract.prediction import Prediction
from shoal.methods.registry import METHODS
from shoal.methods.scores.assignment import nearest_centres
from shoal.review.pages.cluster_sheets import SHOWN_SIDE, Block, by_certainty, draw_sheet, thumbnail
from shoal.review.results.clusters import CENTRES, cluster_facts, read_cluster_tensors
from shoal.review.served.new_images import MADE_GREY, fitted, note_changes, one_file, resized_to

OddSize = Literal["as-set", "skip", "resize"]
Embedding = Literal["none", "columns", "list"]
"""Embeddings in a table: left out; a column a dimension, `embedding_0` and so on; or one column of lists."""
Column = np.ndarray | list[np.ndarray]
"""A column of a table of samples: a value a sample, or an embedding a sample."""
TABLES = (".parquet", ".csv", ".csv.gz")
BATCH = 256
"""Images that are decoded at a time."""
ROWS = 4096
"""Rows of a table at a time."""


@dataclass(frozen=True)
class Predicted:
    """What became of new samples.

    Attributes:
        table: a row a sample: file (of images) or row (of tables), cluster, confidence and, with centres, distance; on
            request the embedding (`Embedding`), float32: what the model makes of the sample, among which centres lie.
        skipped: images that were not used, and why.
        resized: how many images were brought to the set's size.
        recoloured: how many coloured images were made grey, as the set is.
        intake: what was taken, adapted and left out, as of `shoal data add`.
        round: the round whose state predicted.
        rounds: how many rounds the run has.
    """

    table: pd.DataFrame
    skipped: list[Rejected]
    resized: int = 0
    recoloured: int = 0
    intake: Intake = field(default_factory=Intake)
    round: int = 0
    rounds: int = 0


class Predictor:
    """The clusters of a finished run, ready for new samples; its data set need not be there.

    Args:
        run: the run's folder.
        round: the round whose state predicts; None: the last one.

    Attributes:
        round: that round.
        rounds: how many rounds the run has.

    Raises:
        RunError: the run is not finished, has no clusters of samples, or does not keep that round.
        StoreError: a file that the answer hangs on is damaged.
    """

    def __init__(self, run: RunFolder, round: int | None = None) -> None:
        status = run.status()
        if status.state != FINISHED:
            raise RunError(
                f"run {run.name} is not finished ({status.state} after round {status.round}): finish it with "
                f"`shoal run --resume {run.name}`, then predict"
            )
        facts = cluster_facts(run)
        if facts is None:
            told = [e.message for e in run.events() if e.kind == "clusters_skipped"]
            if told:
                raise RunError(f"run {run.name} cannot give new samples a cluster: {told[-1]}")
            raise RunError(f"run {run.name} has no cluster table yet: `shoal run --resume {run.name}` writes it")
        centres = read_cluster_tensors(run, CENTRES)
        self.rounds = status.round
        if round not in (None, self.rounds) and centres is not None:
            raise RunError(
                f"run {run.name} keeps the centres of its clusters for the last round, {self.rounds}, alone: predict "
                "without --round"
            )
        checkpoint = read_state(run, round)
        self.round = checkpoint.server.round
        settings = run.settings()
        self.features = list(facts.data.features)
        self.on_odd = facts.data.on_odd
        self.clusters = facts.clusters
        self.spec = facts.data.spec
        # On the CPU in full precision: new samples are few, and any machine gives the same.
        model, local, augment = (settings.dataclass(name) for name in ("model", "local", "augment"))
        context = Context(self.spec, model, local, augment, settings.seed)
        method = METHODS[settings.method.name](settings.dataclass("method"), context)
        self._predict = method.predictor(checkpoint.judged)
        self._centres = None if centres is None else centres["centres"]

    def assign(self, x: np.ndarray, embedding: Embedding = "none") -> dict[str, Column]:
        """Cluster, confidence and, with centres, distance of samples (n, *shape) in the set's stored dtype.

        Args:
            x: the samples.
            embedding: which columns of it are added.
        """
        assigned, h = self.judge(x)
        columns: dict[str, Column] = {**assigned}
        if embedding == "columns":
            columns |= {f"embedding_{place}": h[:, place] for place in range(h.shape[1])}
        elif embedding == "list":
            columns["embedding"] = list(h)
        return columns

    def judge(self, x: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """What `assign` says of samples, and what the model makes of each, float32 (n, d)."""
        with torch.no_grad():
            given = torch.from_numpy(x).float()
            found = self._predict(given.div_(255) if self.spec.kind == "image" else given)
        return self._assigned(found), found.embedding.flatten(1).float().cpu().numpy()

    def _assigned(self, found: Prediction) -> dict[str, np.ndarray]:
        if self._centres is not None:
            near = nearest_centres(found.embedding, self._centres)
            return {name: getattr(near, name).numpy() for name in near._fields}
        if not found.soft.shape[1]:
            raise MethodError("the centres of this run's clusters are missing: resume it to have them written anew")
        confidence = found.soft.float().gather(1, found.cluster[:, None]).squeeze(1).nan_to_num(nan=0.0)
        return {"cluster": found.cluster.numpy(), "confidence": confidence.numpy()}

    def of_array(self, x: np.ndarray, embedding: Embedding = "none") -> pd.DataFrame:
        """A row a sample of an array: row, cluster, confidence and, with centres, distance; on request the embedding.

        Args:
            x: (n, *shape) as the set has them: images uint8 (n, channels, height, width) or, where grey, (n, height,
                width); vectors float (n, features).
            embedding: which columns of it are added.

        Raises:
            DataError: another shape or type, no sample, or values that are not finite.
        """
        shape, kind = self.spec.shape, self.spec.kind
        x = np.asarray(x)
        if kind == "image" and x.ndim == 3 and shape[0] == 1:
            x = x[:, None]
        if x.shape[1:] != shape or not len(x):
            raise DataError(f"the array has shape {x.shape}, expected (n, {', '.join(map(str, shape))}) with n >= 1")
        if kind == "image" and x.dtype != np.uint8:
            raise DataError(f"the array is {x.dtype}, expected images as uint8, 0 to 255")
        if kind != "image":
            if x.dtype.kind not in "fiu" or not np.isfinite(x).all():
                raise DataError(f"the array is {x.dtype} or holds values that are not finite, expected finite numbers")
            x = x.astype(np.float32)
        parts = [
            pd.DataFrame(self.assign(np.ascontiguousarray(x[start : start + ROWS]), embedding))
            for start in range(0, len(x), ROWS)
        ]
        found = pd.concat(parts, ignore_index=True)
        found.insert(0, "row", np.arange(len(found)))
        return found


def predict(
    run: RunFolder, source: Path, on_odd: str = "as-set", embedding: str = "none", round: int | None = None
) -> Predicted:
    """Clusters of new samples.

    Args:
        run: a finished run.
        source: of a model of images a folder of them at any depth, or one image; of a model of vectors a table with the
            set's feature columns (Parquet or CSV).
        on_odd: images of another size than the set's: skip or resize them; as-set: resize where the set was made so.
        embedding: none, columns or list: as of `Embedding`.
        round: the round whose state predicts; None: the last one.

    Raises:
        RunError, StoreError: as `Predictor`.
        DataError: there is nothing at `source`, no image can be used, or the table's features do not fit.
    """
    if on_odd not in get_args(OddSize):
        raise DataError(f"--on-odd is {on_odd!r}, expected one of {', '.join(get_args(OddSize))}")
    wanted = check_embedding(embedding)
    predictor = Predictor(run, round)
    if not source.exists():
        raise DataError(f"{source} does not exist: give a folder of images, or a table")
    if predictor.spec.kind == "image":
        found = _of_images(predictor, source, predictor.on_odd if on_odd == "as-set" else on_odd, wanted)
    else:
        found = _of_table(predictor, source, wanted)
    return replace(found, round=predictor.round, rounds=predictor.rounds)


def check_embedding(text: str, path: Path | None = None) -> Embedding:
    """The word as an `Embedding`; refused before any work where a file of this name cannot hold it.

    Raises:
        DataError: another word, or lists in a CSV file.
    """
    if text not in get_args(Embedding):
        raise DataError(f"--embedding is {text!r}, expected one of {', '.join(get_args(Embedding))}")
    if text == "list" and path is not None and not path.name.endswith(".parquet"):
        raise DataError(f"--embedding list needs a Parquet file, and --out is {path}: use columns, or a .parquet name")
    return cast(Embedding, text)


def _of_images(predictor: Predictor, source: Path, on_odd: str, embedding: Embedding) -> Predicted:
    name = predictor.spec.name
    intake = Intake()
    if source.is_file():
        paths, root, skipped = one_file(source, name, intake), source.parent, list[Rejected]()
    else:
        found = find_images(source, intake)
        paths, root, skipped = found.images, source, list(found.rejected)
    if not paths and not skipped:
        also = intake.summary()
        also = f" ({also})" if also else ""
        raise DataError(f"no image in {source}: expected files such as .png or .jpg at any depth{also}")
    given = len(paths) + len(skipped)
    parts: list[pd.DataFrame] = []
    for batch in _chunks(paths):
        files, images = [], []
        for path in batch:
            file = path.relative_to(root).as_posix()
            try:
                decoded = decode_with_changes(path)
                image = fitted(decoded.pixels, predictor.spec, on_odd)
            except Unusable as error:
                skipped.append(Rejected(file, str(error), error.kind))
                continue
            note_changes(file, decoded, predictor.spec, intake)
            files.append(file)
            images.append(image)
        if files:
            parts.append(pd.DataFrame({"file": files, **predictor.assign(np.stack(images), embedding)}))
    if not parts:
        raise DataError(f"none of the {given} images in {source} can be used:\n{listing(skipped)}")
    note_left_out(skipped, intake)
    intake.take("files", sum(map(len, parts)))
    changed = {kind: len(names) for kind, names in intake.adapted.items()}
    resized = changed.get(resized_to(predictor.spec), 0)
    return Predicted(pd.concat(parts, ignore_index=True), skipped, resized, changed.get(MADE_GREY, 0), intake)


def _chunks(paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
    return (paths[start : start + BATCH] for start in range(0, len(paths), BATCH))


def _of_table(predictor: Predictor, source: Path, embedding: Embedding) -> Predicted:
    spec = predictor.spec
    expected = int(np.prod(spec.shape))
    if source.is_dir() or not source.name.lower().endswith((".parquet", ".pq", ".csv", ".csv.gz")):
        raise DataError(
            f"{source} is no table: the model was trained on the vectors of {spec.name!r}; give a Parquet or CSV file "
            f"with its {expected} features"
        )
    intake = Intake()
    table = read_table(source, intake=intake)
    intake.see("columns", len(table.columns))
    names = [tidy(name) for name in predictor.features]
    if names:
        missing = [name for name in names if name not in table.columns]
        if missing:
            raise DataError(
                f"{source} lacks {len(missing)} of the {len(names)} features of {spec.name!r}: "
                f"{', '.join(missing[:10])}{' ...' if len(missing) > 10 else ''}"
            )
        for column in table.columns.difference(names, sort=False):
            intake.leave_out("column that is no feature of the set", str(column))
        table = table[names]
    elif len(table.columns) != expected:
        raise DataError(
            f"{source} has {len(table.columns)} columns, expected the {expected} features of {spec.name!r} alone"
        )
    x, _ = features(table, source, intake)
    intake.take("columns", x.shape[1])
    intake.see("rows", len(x))
    intake.take("rows", len(x))
    return Predicted(predictor.of_array(x.reshape(len(x), *spec.shape), embedding), [], intake=intake)


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table of predictions as Parquet or CSV, by the file's name.

    Raises:
        DataError: another suffix (`check_table`), or the file cannot be written.
    """
    check_table(path)
    table = writable(table)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name.endswith(".parquet"):
            table.to_parquet(path, index=False)
        else:
            write_csv(table, path)
    except OSError as error:
        raise DataError(f"{path} could not be written: {error.strerror or error}") from None


def writable(table: pd.DataFrame) -> pd.DataFrame:
    """The table with file names that UTF-8 can hold: bytes of a name that are no UTF-8 are written as escapes."""
    if "file" not in table:
        return table
    return table.assign(file=[name.encode("utf-8", "backslashreplace").decode() for name in table["file"]])


def check_table(path: Path) -> None:
    """Refuse a file name that says neither Parquet nor CSV, before any work.

    Raises:
        DataError: its suffix is another one.
    """
    if not path.name.endswith(TABLES):
        raise DataError(f"--out {path}: expected a name that ends in {', '.join(TABLES)}")


def predicted_sheet(found: Predicted, source: Path, path: Path) -> Path:
    """One contact sheet of new images, a block a cluster: the most certain first, the least certain last.

    Raises:
        DataError: the samples are no images.
    """
    if "file" not in found.table:
        raise DataError("--sheet draws images, and these samples are rows of a table")
    root = source.parent if source.is_file() else source
    blocks = []
    for cluster, rows in found.table.groupby("cluster"):
        certain, unsure = by_certainty(rows)
        shown = pd.concat([certain, unsure[::-1]])
        images = [_small(decode(root / file)) for file in shown["file"]]
        heading = f"cluster {cluster}: {len(rows):,} images"
        if len(shown) < len(rows):
            heading += f", the {len(certain)} most certain and the {len(unsure)} least certain"
        blocks.append(Block(heading, images, shown["file"].tolist(), [""] * len(shown), shown["confidence"].tolist()))
    title = f"{len(found.table):,} new images in {len(blocks)} clusters"
    return draw_sheet(path, title, [f"from {source.name}"], blocks)


def _small(pixels: np.ndarray) -> np.ndarray:
    """An image as planes, no larger than a sheet shows it, so that memory does not hold photos at full size."""
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    if max(planes.shape[1:]) <= SHOWN_SIDE:
        return planes
    return np.ascontiguousarray(np.asarray(thumbnail(planes)).transpose(2, 0, 1))
