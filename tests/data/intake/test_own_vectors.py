"""Vectors in arrays become a set: every format, clients from each place, and a sentence for each fault."""

import json

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from shoal.core.errors import DataError
from shoal.data.intake.own_vectors import holds_vectors
from shoal.data.sets.intake_notes import Intake
from tests.added_sets import add_set

CLIENTS = np.array(["b", "a", "b", "a", "b", "a"])
LABELS = np.array(["x", "y", "x", "y", "x", "z"])
X = (np.arange(24).reshape(6, 4) / 8).astype(np.float32)


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


def npz(path, x=X):
    np.savez(path, x=x, client=CLIENTS, label=LABELS)


def npz_compressed(path, x=X):
    np.savez_compressed(path, x=np.asfortranarray(x), client=CLIENTS, label=LABELS, other=np.ones(3))


def parquet(path, x=X):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), x.shape[1])
    pq.write_table(pa.table({"emb": lists, "client": CLIENTS, "label": LABELS, "age": range(6)}), path)


def parquet_lists(path, x=X):
    pq.write_table(pa.table({"emb": pa.array(x.tolist()), "client": CLIENTS, "label": LABELS}), path)


def h5ad(path, x=X):
    _h5ad(path, lambda file: file.create_dataset("X", data=x))


def h5ad_rows(path, x=X):
    _h5ad(path, lambda file: _sparse(file, sparse.csr_matrix(x), "csr_matrix"))


def h5ad_columns(path, x=X):
    _h5ad(path, lambda file: _sparse(file, sparse.csc_matrix(x), "csc_matrix"))


def _sparse(file, matrix, kind):
    group = file.create_group("X")
    group.attrs["encoding-type"] = kind
    group.attrs["shape"] = matrix.shape
    for name in ("data", "indices", "indptr"):
        group[name] = getattr(matrix, name)


def _h5ad(path, write):
    with h5py.File(path, "w") as file:
        write(file)
        for column, values in (("client", CLIENTS), ("label", LABELS)):
            names, codes = np.unique(values, return_inverse=True)
            group = file.create_group(f"obs/{column}")
            group["categories"] = names.tolist()
            group["codes"] = codes.astype(np.int8)
        file["var/_index"] = ["g1", "g2", "g3", "g4"]
        file["var"].attrs["_index"] = "_index"


FORMATS = {
    "a.npz": npz,
    "b.npz": npz_compressed,
    "a.parquet": parquet,
    "b.parquet": parquet_lists,
    "a.h5ad": h5ad,
    "b.h5ad": h5ad_rows,
    "c.h5ad": h5ad_columns,
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_set(name, tmp_path, store):
    FORMATS[name](tmp_path / name)
    assert holds_vectors(tmp_path / name)
    made = add_set(tmp_path / name, "cells", store, label_column="label")
    assert made.manifest.kind == "vector"
    assert np.array_equal(np.asarray(made.train_x), X)
    assert made.train_x.dtype == np.float32
    assert made.manifest.extra["clients"] == ["a", "b"]
    assert made.column("client").tolist() == [1, 0, 1, 0, 1, 0]
    assert made.manifest.class_names == ("x", "y", "z")
    assert np.asarray(made.train_y).tolist() == [0, 1, 0, 1, 0, 2]
    expected = ["g1", "g2", "g3", "g4"] if name.endswith(".h5ad") else ["0", "1", "2", "3"]
    assert made.manifest.extra["features"] == expected


def test_npy_takes_its_clients_from_a_table_or_an_array(tmp_path, store):
    np.save(tmp_path / "x.npy", X)
    pd.DataFrame({"site": CLIENTS, "kind": LABELS}).to_csv(tmp_path / "who.csv", index=False)
    pd.DataFrame({"client": [7.0, 10, 7, 10, 7, 10]}).to_parquet(tmp_path / "who.parquet")
    one = add_set(
        tmp_path / "x.npy",
        "one",
        store,
        clients=tmp_path / "who.csv",
        client_column="site",
        label_column="kind",
        test=1 / 3,
    )
    assert one.manifest.extra["clients"] == ["a", "b"]
    assert one.manifest.test == 2
    other = add_set(tmp_path / "x.npy", "other", store, clients=tmp_path / "who.parquet")
    assert other.manifest.extra["clients"] == ["7", "10"]
    assert other.column("client").tolist() == [0, 1, 0, 1, 0, 1]
    assert other.manifest.classes is None


def test_a_folder_has_a_file_or_a_folder_for_each_client(tmp_path, store):
    folder = tmp_path / "embeddings"
    (folder / "oslo").mkdir(parents=True)
    np.save(folder / "bergen.npy", X[:2])
    np.save(folder / "oslo" / "1.npy", X[2:4].astype(np.float16))
    np.savez(folder / "oslo" / "2.npz", x=X[4:].astype(np.float64))
    (folder / "README.txt").write_text("mine")
    notes = Intake()
    made = add_set(folder, "mine", store, intake=notes)
    assert made.manifest.extra["clients"] == ["bergen", "oslo"]
    assert made.column("client").tolist() == [0, 0, 1, 1, 1, 1]
    assert np.array_equal(np.asarray(made.train_x), X)
    assert notes.taken == {"files": 3, "rows": 6}
    assert "README.txt" in notes.left_out["not a file of vectors"]


def test_rounding_to_float32_is_noted(tmp_path, store):
    notes = Intake()
    npz(tmp_path / "x.npz", X.astype(np.float64) + 5_000)
    add_set(tmp_path / "x.npz", "noted", store, intake=notes)
    assert notes.adapted == {"array of float64 as float32": {"x.npz": ""}}


def _bad(row, column, value):
    x = X.astype(np.float64)
    x[row, column] = value
    return x


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda p: npz(p, _bad(3, 2, np.nan)), "x.npz: row 3, column 2 is nan"),
        (lambda p: npz(p, _bad(5, 0, -np.inf).astype(np.float32)), "x.npz: row 5, column 0 is -inf"),
        (lambda p: npz(p, _bad(1, 3, 1e300)), "row 1, column 3 is too large for float32"),
        (lambda p: np.savez(p, x=X.reshape(6, 2, 2), client=CLIENTS), r"shape \(6, 2, 2\): expected one vector a row"),
        (lambda p: np.savez(p, x=X), "does not say whose each vector is"),
        (lambda p: np.savez(p, x=X, client=CLIENTS[:5]), "6 vectors and 5 values of 'client': expected one each"),
        (lambda p: np.savez(p, x=X[:0], client=CLIENTS[:0]), "x has no rows"),
        (
            lambda p: np.savez(p, a=X, b=X, client=CLIENTS),
            "it has a, b, client: name .* --features of `shoal data add`",
        ),
        (lambda p: np.savez(p, x=LABELS[:, None], client=CLIENTS), "expected numbers"),
        (lambda p: np.savez(p, x=X, client=["a", "", "a", "a", "b", "b"]), "1 rows have no client in 'client': row 1"),
        (lambda p: p.write_bytes(b"PK nothing"), "cannot be read as arrays"),
    ],
)
def test_a_fault_is_one_sentence(write, sentence, tmp_path, store):
    path = tmp_path / "x.npz"
    write(path)
    with pytest.raises(DataError, match=sentence) as error:
        add_set(path, "mine", store)
    assert len(str(error.value).splitlines()) == 1
    assert not (store / "own" / "mine").exists()


def test_ragged_and_missing_lists_name_their_row(tmp_path, store):
    path = tmp_path / "x.parquet"
    for rows, sentence in (
        ([[1.0, 2], [3.0, 4], [5.0]], "row 2 has no list of 2 numbers in 'emb', as row 0 has"),
        ([[1.0, 2], None, [5.0, 6]], "row 1 has no list of 2 numbers"),
        ([[1.0, 2], [3.0, None], [5.0, 6]], "row 1, column 1 is nan"),
    ):
        pq.write_table(pa.table({"emb": pa.array(rows), "client": ["a", "b", "a"]}), path)
        with pytest.raises(DataError, match=sentence):
            add_set(path, "mine", store)


def test_a_client_without_a_file_and_another_width_are_refused(tmp_path, store):
    folder = tmp_path / "embeddings"
    (folder / "bergen").mkdir(parents=True)
    np.save(folder / "oslo.npy", X)
    with pytest.raises(DataError, match=r"no file of vectors in the folders of these clients .*: bergen"):
        add_set(folder, "mine", store)
    np.save(folder / "bergen" / "x.npy", X[:, :3])
    with pytest.raises(DataError, match=r"has vectors of 4 numbers, and .* of 3"):
        add_set(folder, "mine", store)


def test_vectors_are_appended_and_known_ones_refused(tmp_path, store):
    npz(tmp_path / "one.npz")
    npz(tmp_path / "two.npz", X + 3)
    add_set(tmp_path / "one.npz", "mine", store)
    more = add_set(tmp_path / "two.npz", "mine", store, append=True)
    assert np.array_equal(np.asarray(more.train_x), np.concatenate([X, X + 3]))
    with pytest.raises(DataError, match=r"has rows of two\.npz already"):
        add_set(tmp_path / "two.npz", "mine", store, append=True)
    (tmp_path / "copy.npz").write_bytes((tmp_path / "one.npz").read_bytes())
    with pytest.raises(DataError, match=r"copy\.npz has the same bytes as one\.npz, which is taken already"):
        add_set(tmp_path / "copy.npz", "mine", store, append=True)
    (tmp_path / "sites").mkdir()
    for site in ("oslo", "bergen"):
        np.save(tmp_path / "sites" / f"{site}.npy", X)
    with pytest.raises(DataError, match=r"oslo\.npy has the same bytes as bergen\.npy"):
        add_set(tmp_path / "sites", "other", store)
    npz(tmp_path / "three.npz", X[:, :3])
    with pytest.raises(DataError, match="holds vectors of shape 4, and these are vectors of shape 3"):
        add_set(tmp_path / "three.npz", "mine", store, append=True)


def test_nothing_is_left_beside_the_set(tmp_path, store):
    parquet(tmp_path / "a.parquet")
    made = add_set(tmp_path / "a.parquet", "mine", store)
    assert sorted(p.name for p in store.iterdir() if not p.name.startswith(".")) == ["own"]
    assert json.loads((made.folder.parent / "mine.intake.json").read_text())["left_out"] == {
        "array or column that is neither vectors, clients nor labels": {
            "a.parquet: age": "",
            "a.parquet: label": "",
        }
    }
