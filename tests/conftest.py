"""What many tests need: a quiet environment, a home of their own, and small runs on scikit-learn's digits."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("DO_NOT_TRACK", "1")
# The pretrained encoder sees the images of all tests once, whatever their homes.
os.environ.setdefault("SHOAL_ENCODED", str(Path(tempfile.gettempdir()) / "shoal-tests-encoded"))
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
# Where no bytecode is written, each of some hundred processes compiles the package and each clone again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
import torch

from shoal.methods.registry import BUILT_IN, METHODS

sys.dont_write_bytecode = False
torch.set_num_threads(1)
# Python looks for cycles after 50,000 new objects instead of 700: collecting them took a tenth of the suite's time.
gc.set_threshold(50_000, 10, 10)


LONGEST = (
    "test_serve.py",
    "test_prefect.py",
    "test_new_data.py",
    "test_feature_clustering.py",
    "test_dvc.py",
    "test_methods_there.py",
    "test_recorded_bits.py",
    "test_runner.py",
    "test_report.py",
    "test_tracking_server.py",
    "test_cli.py",
    "test_timeout.py",
    "test_loop.py",
    "test_pyfunc.py",
    "test_tracking.py",
    "test_every_method_runs.py",
    "test_search.py",
    "test_pools.py",
    "test_damage.py",
    "test_chaos.py",
    "test_stages.py",
    "test_embedded_store.py",
    "test_promotion.py",
    "test_nightly.py",
    "test_every_method.py",
    "test_hostile.py",
    "test_tracking_repeats.py",
    "test_lost_sets.py",
)
"""Files that take longest: they run first, so that no worker is left with one of them at the end."""


REPRESENTATIVES = {"fedpnp", "fedsimclr", "cfcl", "cfl", "uifca", "fedkmeans"}
"""Methods that `make test` runs, one for each base class; `make test-all` runs every method."""


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # the laboratory's tests take these hooks too
        parser.addoption("--tenth", metavar="COMMIT", help="run a tenth of the tests, chosen by the digits of a commit")


def one_quick(values: Iterable[Any]) -> list[Any]:
    """Return parameters of a test of which `make test` runs the first alone."""
    first, *more = values
    return [first, *(pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=pytest.mark.long) for v in more)]


def methods_of(item: pytest.Item) -> set[str]:
    """Return the methods that a test of every method is about."""
    values = getattr(getattr(item, "callspec", None), "params", {}).values()
    return {value.split(",")[0] for value in values if isinstance(value, str)} & METHODS.keys()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        methods = methods_of(item)
        if methods and not methods & REPRESENTATIVES:
            item.add_marker("long")
        # The laboratory's variants of methods share their code.
        if methods - BUILT_IN.keys() and item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("slow")
    if commit := config.getoption("--tenth"):
        part = int(commit[:8], 16) % 10
        items[:] = [item for item in items if hashlib.sha256(item.nodeid.encode()).digest()[0] % 10 == part]
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what was imported: nothing of it is freed."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def disk_is_not_waited_for() -> Iterator[None]:
    """Let this process go on before its files are on the disk: no test cuts the power. Other processes do wait."""

    def fsync(descriptor: int) -> None:
        os.fstat(descriptor)  # which refuses what is not open

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


@pytest.fixture(scope="session", autouse=True)
def stores_are_copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have MLflow make one embedded store in this process, which takes a second; the next ones are copies of it."""
    from shoal.review.mlflow_log import embedded_store

    make = embedded_store._make
    first = tmp_path_factory.mktemp("first") / embedded_store.FILE

    def copy(store: Path) -> None:
        if not first.exists():
            make(first.parent)
        scratch = store / ".copy"
        try:
            shutil.copy(first, scratch)
        except OSError:
            make(store)  # which says what is wrong with the folder
            return
        with contextlib.closing(sqlite3.connect(scratch)) as opened, opened:
            place = f"{(store / 'artifacts').as_uri()}/0"
            opened.execute("update experiments set artifact_location = ?", (place,))
        scratch.rename(store / embedded_store.FILE)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded_store, "_make", copy)
        yield


@contextlib.contextmanager
def at_home(folder: Path) -> Iterator[Path]:
    """Have a folder as the home; nothing of the user's environment is seen."""
    # Of its own: a test that undoes its patches would go on in the folder that the tests were started in.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(folder))
        for name in ("SHOAL_DATA_MIRROR", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
            patch.delenv(name, raising=False)
        patch.chdir(folder)
        yield folder


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """An empty home folder; nothing of the user's environment reaches the test."""
    with at_home(tmp_path):
        yield tmp_path


SMALL: dict[str, Any] = {
    "method": {"name": "fedpnp"},
    "data": {"name": "digits", "limit": 240},
    "partition": {"kind": "iid", "clients": 3},
    "model": {"encoder": "tiny-conv"},
    "local": {"epochs": 1, "batch": 32},
    "rounds": 3,
    "workers": {"device": "cpu", "precision": "fp32", "slots": 1},
    "tracking": {"mlflow": False, "prefect": "off"},
}


@pytest.fixture
def small() -> Callable[..., Any]:
    """Makes settings of a run of a few seconds, with changes laid over them."""
    from shoal.engine.settings.merge import merge
    from shoal.engine.settings.run_settings import make_settings

    return lambda **changes: make_settings(merge(SMALL, changes))


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """scikit-learn's digits, prepared."""
    from shoal.data.sets.prepare import prepare

    return prepare("digits", tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Build a small prepared set from labels (or a number of samples) and natural clients."""
    import numpy as np

    from shoal.data.sets.prepared import Manifest, open_prepared, write_prepared

    def make(labels: Any, *, clients: Any = None, shape: tuple[int, ...] = (1, 4, 4), kind: Any = "image") -> Any:
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
def real_mirror(request: pytest.FixtureRequest) -> Path:
    """The mirror of the real sets. Without one a slow test fails; where a tenth of them is drawn, it is skipped."""
    named = os.environ.get("SHOAL_DATA_MIRROR")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "datasets"
    if not folder.is_dir():
        told = pytest.skip if request.config.getoption("--tenth") else pytest.fail
        told(f"slow tests need the mirror of the real data sets: set SHOAL_DATA_MIRROR ({folder} is missing)")
    return folder
