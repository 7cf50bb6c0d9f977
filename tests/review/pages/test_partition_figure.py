import numpy as np
import pytest
from PIL import Image

from shoal.data.partition.make import make_partition
from shoal.data.partition.schemes import IID, ByColumn, LabelsPerClient
from shoal.review.pages.partition_figure import partition_figure


def drawn(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


@pytest.mark.long
@pytest.mark.parametrize("scheme", [LabelsPerClient(clients=3), IID(clients=120, transform="rotation")])
def test_heat_map(scheme, digits, tmp_path):
    path = partition_figure(make_partition(scheme, digits), digits, tmp_path / "new" / "labels.png")
    image = drawn(path)
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 10
    assert image.shape[1] <= 24 * 150


def test_bars_without_labels(build, tmp_path):
    data = build(20, clients=["a", "b"] * 10)
    assert drawn(partition_figure(make_partition(ByColumn(), data), data, tmp_path / "f.png")).std() > 0
