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
    assert np.array_equal(read_idx(idx_bytes(array)), array)


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
    x, y = read_cifar_records(content)
    assert np.array_equal(x, images)
    assert np.array_equal(y, labels)
    assert (x.dtype, y.dtype) == (np.uint8, np.int64)


def test_ag_news_rows():
    texts, labels = read_ag_news(csv_bytes([(3, 'A "quoted", title', "one\\two"), (1, "b", "")]))
    assert texts == ['A "quoted", title\none\\two', "b\n"]
    assert labels.tolist() == [2, 0]
