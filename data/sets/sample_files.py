"""The file (or row of a table) of each sample of a set of the user's own: the way back to the originals.

    part   index  client    file
    train      0  clinic a  clinic a/0001.png
    test       0  clinic b  clinic b/0007.png

Each client's folder has the rows of its samples, as files.parquet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.data.sets.by_client import client_file, is_by_client
from shoal.data.sets.prepared import PreparedSet, check_file
from shoal.data.sets.remedy import SITES

if TYPE_CHECKING:
    import numpy as np
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
        DataError: a file of the table is missing, or is not the one that the manifest describes.
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
            check_file(prepared.folder, manifest, file)
            tables.append(pd.read_parquet(prepared.folder / file).assign(client=name))
    table = pd.concat(tables, ignore_index=True)
    # Training samples first, each part by the numbers of its samples.
    table = table.sort_values(["part", "index"], ascending=[False, True], ignore_index=True)
    return table[list(COLUMNS)]


def files_table(parts: dict[str, tuple[np.ndarray, list[str]]]) -> bytes:
    """Return the table of one client as the bytes of files.parquet.

    Args:
        parts: by part of the set, the numbers of the client's samples, int64 (n,), and the origin of each.
    """
    import pandas as pd

    rows = [pd.DataFrame({"part": part, "index": index, "file": files}) for part, (index, files) in parts.items()]
    return bytes(pd.concat(rows, ignore_index=True).to_parquet(index=False))
