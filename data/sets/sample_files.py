"""The file (or row of a table) of each sample of a set of the user's own: the way back to the originals.

    part   index  client    file
    train      0  clinic a  clinic a/0001.png
    test       0  clinic b  clinic b/0007.png

Each client's folder has the rows of its samples, as files.parquet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shoal.core.errors import DataError, short_text
from shoal.data.sets.by_client import client_file, is_by_client
from shoal.data.sets.prepared import PreparedSet, check_file
from shoal.data.sets.remedy import SITES

if TYPE_CHECKING:
    import pandas as pd

FILES = "files.parquet"
COLUMNS = ("part", "index", "client", "file")


def sample_files(prepared: PreparedSet) -> pd.DataFrame | None:
    """Return the origin of every sample of a set; None for sets without file names: built-in ones, and
    sets that lie at sites.

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

    manifest = prepared.manifest
    if not is_by_client(manifest.files) or SITES in manifest.extra:
        return None
    names = [str(name) for name in manifest.extra["clients"]]
    tables = []
    for client, name in enumerate(names):
        file = client_file(client, FILES)
        if file in manifest.files:
            tables.append(_client_table(prepared, file).assign(client=name))
    table = pd.concat(tables, ignore_index=True)
    # Training samples first, each part by the numbers of its samples.
    rank = table["index"].to_numpy() + np.where(table["part"] == "test", manifest.train, 0)
    if len(rank) != manifest.train + manifest.test or not np.array_equal(np.sort(rank), np.arange(len(rank))):
        raise DataError(f"{prepared.folder} does not name a file for every sample: {_remedy(prepared)}")
    order = np.argsort(rank)
    return table.iloc[order].reset_index(drop=True)[list(COLUMNS)]


def _client_table(prepared: PreparedSet, file: str) -> pd.DataFrame:
    """Return the rows of one client: part, index and file."""
    import pandas as pd
    import pyarrow.parquet

    check_file(prepared.folder, prepared.manifest, file)
    path = prepared.folder / file
    try:
        pyarrow.parquet.read_table(path).validate(full=True)
        return pd.read_parquet(path)[["part", "index", "file"]]
    except Exception as error:  # written by another program, and named in the manifest
        raise DataError(f"{path} is not a table of file names ({short_text(error)}): {_remedy(prepared)}") from error


def _remedy(prepared: PreparedSet) -> str:
    return f"add the set {prepared.manifest.name!r} again, or pull it with `dvc pull`"


def files_table(parts: dict[str, tuple[np.ndarray, list[str]]]) -> bytes:
    """Return the table of one client as the bytes of files.parquet.

    Args:
        parts: by part of the set, the numbers of the client's samples, int64 (n,), and the origin of each.
    """
    import pandas as pd

    rows = [pd.DataFrame({"part": part, "index": index, "file": files}) for part, (index, files) in parts.items()]
    return bytes(pd.concat(rows, ignore_index=True).to_parquet(index=False))
