import numpy as np
import pytest
from PIL import Image

from shoal.core.errors import DataError
from shoal.data.partition.make import make_partition
from shoal.data.partition.schemes import IID, ByColumn, LabelsPerClient
from shoal.review.pages.contact_sheet import contact_sheet, drawn_positions
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


def test_a_sheet_shows_a_draw_of_each_clients_images():
    own = np.arange(100, 200)
    drawn_of = {seed: drawn_positions(own, 12, seed, row=3) for seed in (0, 1)}
    for positions in drawn_of.values():
        assert len(set(positions.tolist())) == 12
        assert set(positions.tolist()) <= set(own.tolist())
        assert positions[-1] >= 112, "the first files by name"
    assert drawn_of[0].tolist() != drawn_of[1].tolist()
    assert drawn_of[0].tolist() == drawn_positions(own, 12, 0, row=3).tolist()
    assert drawn_positions(own[:4], 12, 0, row=3).tolist() == own[:4].tolist()


def test_contact_sheet(digits, build, tmp_path):
    sheet = drawn(contact_sheet(digits, tmp_path / "s.png", columns=5))
    assert sheet.shape[0] == 10 * 34 + 2  # a row for each label, its name beside it
    margin = sheet.shape[1] - 5 * 34
    assert 2 < margin < 40
    first = drawn_positions(np.flatnonzero(digits.train_y == 0), 5, seed=0, row=0)[0]
    assert np.array_equal(sheet[2:34:4, margin:][:, :32:4, 0], digits.train_x[first, 0])
    partition = make_partition(IID(clients=2, transform="rotation"), digits)
    clients = drawn(contact_sheet(digits, tmp_path / "c.png", partition=partition, columns=5))
    row = drawn_positions(np.arange(len(partition.client))[partition.rows(1)], 5, seed=0, row=1)[0]
    first = digits.train_x[partition.sample[row], 0]
    assert np.array_equal(clients[36:68:4, clients.shape[1] - 5 * 34 :][:, :32:4, 0], np.rot90(first, 2))
    with pytest.raises(DataError, match="expected a set of images"):
        contact_sheet(build([0, 1], shape=(3,), kind="vector"), tmp_path / "v.png")
    assert drawn(contact_sheet(build(5), tmp_path / "u.png", columns=3)).shape[0] == 2 * 34 + 2
