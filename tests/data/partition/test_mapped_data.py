"""Large sets are shared by the processes of a machine, and nothing that is done with them reaches their files."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.core.errors import DataError
from shoal.data.partition.make import make_partition
from shoal.data.partition.schemes import IID
from shoal.data.partition.table import load_partition, save_partition
from shoal.data.sets.prepared import open_prepared
from shoal.data.views import view
from shoal.data.views.view import DeviceData, all_samples, client_samples


def test_a_mapped_set_is_the_same_and_its_files_are_not_written_to(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = build(list(range(4)) * 10)
    file = prepared.folder / "train_x.npy"
    before = file.read_bytes()
    copied = DeviceData(prepared)
    monkeypatch.setattr(view, "MIN_SHARED_BYTES", 0)
    mapped = DeviceData(prepared)
    assert torch.equal(mapped.train_x, copied.train_x)
    assert torch.equal(mapped.train_y, copied.train_y)
    kept = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(file) in line]
    assert any(" rw-p " in line for line in kept), "its pages are the file's, until one is written to"
    mapped.train_x.zero_()
    copied.train_x.zero_()
    assert file.read_bytes() == before
    assert int(np.load(file).max()) > 0


def test_a_partition_is_read_as_it_was_written(build: Callable[..., Any], tmp_path: Any) -> None:
    prepared = build(list(range(4)) * 10)
    partition = make_partition(IID(clients=3, validation=0.2), prepared)
    save_partition(partition, tmp_path / "partition")
    found = load_partition(tmp_path / "partition")
    assert found.digest == partition.digest
    assert (found.sample.dtype, found.client.dtype) == (np.int64, np.int32)
    for name in ("sample", "client", "validation"):
        assert np.array_equal(getattr(found, name), getattr(partition, name)), name
    for client in range(3):
        samples = client_samples(DeviceData(prepared), found, client)
        assert samples.index.tolist() == partition.samples_of(client).tolist()


def test_samples_without_labels(build: Callable[..., Any]) -> None:
    data = build(20)
    samples = all_samples(DeviceData(data), make_partition(IID(clients=2), data))
    assert len(samples) == 20
    with pytest.raises(ValueError, match="no labels"):
        samples.y()


@pytest.mark.parametrize(("kind", "dtype"), [("text", torch.int32), ("vector", torch.float32)])
def test_text_and_vectors_stay_as_they_are(build: Callable[..., Any], kind: str, dtype: torch.dtype) -> None:
    data = build([0, 1] * 10, shape=(6,), kind=kind)
    samples = client_samples(DeviceData(data), make_partition(IID(clients=2), data), 0)
    assert samples.x().dtype == dtype
    assert torch.equal(samples.x(), samples.raw())


def test_a_file_is_not_damaged_because_another_thread_parses_python(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = build(list(range(4)) * 10)
    literal_eval, failures = ast.literal_eval, [2]

    def disturbed(text: str) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch (before=63, after=60)")
        return literal_eval(text)

    monkeypatch.setattr(ast, "literal_eval", disturbed)
    found = open_prepared(prepared.folder)
    assert failures == [0]
    assert np.array_equal(found.train_x, prepared.train_x)
    failures[0] = 1000
    with pytest.raises(DataError, match="recursion depth mismatch"):
        open_prepared(prepared.folder)
