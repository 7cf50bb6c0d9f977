import gzip
import lzma
import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import DataError
from shoal.data.sets.readers import cifar_batch, read_ag_news, read_cifar_pickle, read_cifar_records, read_idx, unpack
from tests.data.official_formats import cifar_bytes, csv_bytes, idx_bytes, tiny_images


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_idx_round_trip(shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    assert np.array_equal(read_idx(idx_bytes(array), "f"), array)


@pytest.mark.parametrize("cut", [0, 3, 4, 9, 15, 16, -1])
def test_truncated_idx_is_refused_by_name(cut):
    content = idx_bytes(tiny_images(3))
    with pytest.raises(DataError, match="train-images"):
        read_idx(content[:cut], "train-images")


def test_idx_of_another_kind_or_too_long():
    with pytest.raises(DataError, match="not an idx file"):
        read_idx(b"\x00\x00\x0d\x01" + b"\x00" * 20, "floats")
    with pytest.raises(DataError, match="expected 2,368 for shape"):
        read_idx(idx_bytes(tiny_images(3)) + b"x", "f")


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_unpack(suffix, pack):
    content = os.urandom(1000)
    assert unpack(pack(content), f"f{suffix}") == content
    assert unpack(content, "f.bin") is content
    for broken in (pack(content)[:-20], pack(content)[:10], b"not packed at all", b""):
        if broken or suffix == ".xz":
            with pytest.raises(DataError, match=rf"f\{suffix} is truncated"):
                unpack(broken, f"f{suffix}")


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_records(classes):
    images, labels = tiny_images(7, (3, 32, 32)), np.array([0, 1, 2, 3, 4, 5, classes - 1])
    content = cifar_bytes(images, labels, coarse=labels % 20 if classes == 100 else None)
    x, y = read_cifar_records(content, "f", classes=classes)
    assert np.array_equal(x, images)
    assert np.array_equal(y, labels)
    assert (x.dtype, y.dtype) == (np.uint8, np.int64)
    with pytest.raises(DataError, match="whole number"):
        read_cifar_records(content[:-1], "f", classes=classes)
    with pytest.raises(DataError, match="whole number"):
        read_cifar_records(b"", "f", classes=classes)


def test_cifar_label_out_of_range():
    content = cifar_bytes(tiny_images(3, (3, 32, 32)), np.array([1, 10, 2]))
    with pytest.raises(DataError, match=r"test_batch: sample 1 has label 10, expected 0 to 9"):
        read_cifar_records(content, "test_batch")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_cifar_pickle(protocol):
    images = tiny_images(3, (3, 32, 32))
    content = pickle.dumps({"data": images.reshape(3, -1), "fine_labels": [5, 99, 0]}, protocol)
    x, y = cifar_batch(read_cifar_pickle(content, "train"), "train", classes=100)
    assert np.array_equal(x, images)
    assert y.tolist() == [5, 99, 0]


def test_pickle_that_runs_code_is_refused():
    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    with pytest.raises(DataError, match=r"asks for \w+\.system"):
        read_cifar_pickle(pickle.dumps({"data": Evil()}), "data_batch_1")


def array_pickle(code: str, state: tuple) -> bytes:
    """A pickle of numpy's form of an array, with a type and a state of choice."""

    class Type:
        def __reduce__(self):
            return np.dtype, (code, False, True), (3, "|", None, None, None, -1, -1, 0)

    class Pixels:
        def __reduce__(self):
            numpy_form = np.zeros(1, np.uint8).__reduce__()
            return numpy_form[0], (np.ndarray, (0,), b"b"), (1, state[0], Type(), *state[1:])

    return pickle.dumps({"data": Pixels(), "labels": [1]}, 2)


def test_numpy_takes_no_state_of_a_pickle():
    whole = read_cifar_pickle(array_pickle("u1", ((1, 4), False, b"abcd")), "f")
    assert whole["data"].tolist() == [[97, 98, 99, 100]]
    for code, state, why in (
        ("O8", ((1, 4), False, b"abcd" * 8), "array of O8"),
        ("V4", ((1, 4), False, b"abcd"), "array of V4"),
        ("u1", ((1, 5), False, b"abcd"), "cannot be read"),
        ("u1", ((2, 2), True, b"abcd"), "not of bytes in rows"),
        ("u1", ((1, 4), False, [1, 2, 3, 4]), "cannot be read"),
    ):
        with pytest.raises(DataError, match=why):
            read_cifar_pickle(array_pickle(code, state), "f")


def test_broken_cifar_pickles():
    good = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}
    with pytest.raises(DataError, match="cannot be read"):
        read_cifar_pickle(pickle.dumps(good)[:100], "f")
    with pytest.raises(DataError, match="holds a list"):
        read_cifar_pickle(pickle.dumps([1]), "f")
    with pytest.raises(DataError, match="expected 'data' and 'labels'"):
        cifar_batch({"data": good["data"]}, "f")
    with pytest.raises(DataError, match="expected uint8"):
        cifar_batch({**good, "labels": [0]}, "f")


def test_ag_news_rows():
    texts, labels = read_ag_news(csv_bytes([(3, 'A "quoted", title', "one\\two"), (1, "b", "")]), "f")
    assert texts == ['A "quoted", title\none\\two', "b\n"]
    assert labels.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'"1","a","b"\n"5","a","b"\n', "line 2: expected a class from 1 to 4"),
        (b'"1","a"\n', "line 1.*found 2 fields"),
        (b'"1","a","b\n', "not a whole CSV"),
        (b'"1","\xff","b"\n', "not a whole CSV"),
        (b"", "empty"),
    ],
)
def test_broken_ag_news(content, message):
    with pytest.raises(DataError, match=message):
        read_ag_news(content, "train.csv")
