import gzip
import lzma
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import DataError
from shoal.data.sets.readers import read_ag_news, read_cifar_records, read_idx, unpack
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


def test_cifar_records():
    images, labels = tiny_images(3, (3, 32, 32)), np.array([0, 5, 9])
    content = cifar_bytes(images, labels)
    x, y = read_cifar_records(content, "f")
    assert np.array_equal(x, images)
    assert np.array_equal(y, labels)
    assert (x.dtype, y.dtype) == (np.uint8, np.int64)
    with pytest.raises(DataError, match="whole number"):
        read_cifar_records(content[:-1], "f")
    with pytest.raises(DataError, match="whole number"):
        read_cifar_records(b"", "f")


def test_cifar_label_out_of_range():
    content = cifar_bytes(tiny_images(3, (3, 32, 32)), np.array([1, 10, 2]))
    with pytest.raises(DataError, match=r"test_batch: sample 1 has label 10, expected 0 to 9"):
        read_cifar_records(content, "test_batch")


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
