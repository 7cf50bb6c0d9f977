"""The file (or row of a table) of each sample of a set of the user's own: the way back to the originals.

    part   index  client    file
    train      0  clinic a  clinic a/0001.png
    test       0  clinic b  clinic b/0007.png

The table lies in the set's folder as files.parquet; the manifest holds its digest in `extra["files_sha256"]`.
"""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING

import numpy as np

from shoal.core.errors import DataError, brief
from shoal.data.prepared import Prepared

if TYPE_CHECKING:
    import pandas as pd

FILES = "files.parquet"
DIGEST = "files_sha256"
COLUMNS = ("part", "index", "client", "file")


def sample_files(prepared: Prepared) -> pd.DataFrame | None:
    """Return the origin of every sample of a set; None for sets without file names, such as the built-in ones.

    Args:
        prepared: an opened set.

    Returns:
        One row a sample, the training part first, each part in the order of its arrays. Columns: part (train or
        test), index (into the arrays of that part), client (its name), file (of images the path below the folder that
        was added, of tables `TABLE:ROW`, rows counted from 0).

    Raises:
        DataError: the table is missing or unreadable, or does not match the manifest.
    """
    import pandas as pd  # takes half a second, and most users of a prepared set do not need it
    import pyarrow.parquet

    expected = prepared.manifest.extra.get(DIGEST)
    if expected is None:
        return None
    path = prepared.folder / FILES
    mend = f"add the set {prepared.manifest.name!r} again, or pull it with `dvc pull`"
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): {mend}") from None
    if hashlib.sha256(raw).hexdigest() != expected:
        raise DataError(f"{path} is not the table of file names that its manifest describes: {mend}")
    try:
        pyarrow.parquet.read_table(io.BytesIO(raw)).validate(full=True)
        table = pd.read_parquet(io.BytesIO(raw))[list(COLUMNS)]
        counts = table["part"].value_counts()
    except Exception as error:  # written by another program, and named in the manifest
        raise DataError(f"{path} is not a table of file names ({brief(error)}): {mend}") from error
    if [counts.get("train", 0), counts.get("test", 0)] != [prepared.manifest.train, prepared.manifest.test]:
        raise DataError(f"{path} does not have a row for every sample of the set: {mend}")
    return table


def files_table(files: list[str], clients: list[str], held: np.ndarray) -> bytes:
    """Return the table as the bytes of files.parquet.

    Args:
        files, clients: the origin and the client's name of each sample, in the order they were read.
        held: bool (samples,), true for those of the test part; each part keeps the order.
    """
    import pandas as pd

    table = pd.DataFrame({"part": np.where(held, "test", "train"), "client": clients, "file": files})
    table = table.sort_values("part", ascending=False, kind="stable", ignore_index=True)  # train before test
    table["index"] = table.groupby("part").cumcount().astype("int64")
    result: bytes = table[list(COLUMNS)].to_parquet(index=False)
    return result
