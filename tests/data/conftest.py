import os
from pathlib import Path

import numpy as np
import pytest

from data.prepare import prepare
from data.prepared import Manifest, open_prepared, write_prepared


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    return prepare("digits", tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Build a small prepared set from labels (or a number of samples) and natural clients."""

    def make(labels, *, clients=None, shape=(1, 4, 4), kind="image"):
        n = labels if isinstance(labels, int) else len(labels)
        y = None if isinstance(labels, int) else np.asarray(labels, dtype=np.int64)
        dtype = {"image": np.uint8, "vector": np.float32, "text": np.int32}[kind]
        x = np.arange(n * int(np.prod(shape))).reshape(n, *shape).astype(dtype)
        names = sorted(set(clients or []))
        manifest = Manifest(
            name="tiny",
            kind=kind,
            shape=shape,
            classes=None if y is None else int(y.max()) + 1,
            train=n,
            test=0,
            source="a test",
            licence="none",
            extra={"clients": names} if clients else {},
        )
        columns = {"client": np.array([names.index(c) for c in clients], dtype=np.int64)} if clients else None
        folder = tmp_path_factory.mktemp("tiny") / "tiny"
        write_prepared(folder, manifest, {"train_x": x, "train_y": y}, columns)
        return open_prepared(folder)

    return make


@pytest.fixture(scope="session")
def real_mirror():
    """The mirror of the real sets; a slow test without one fails, it is not skipped."""
    named = os.environ.get("SHOAL_DATA_MIRROR")
    folder = Path(named) if named else Path(__file__).parents[3] / "shared" / "datasets"
    if not folder.is_dir():
        pytest.fail(f"slow tests need the mirror of the real data sets: set SHOAL_DATA_MIRROR ({folder} is missing)")
    return folder
