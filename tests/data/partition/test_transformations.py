import numpy as np
import pytest
import torch

from shoal.core.errors import PartitionError
from shoal.data.partition.make import make_partition
from shoal.data.partition.schemes import IID
from shoal.data.views.view import DeviceData, all_samples, client_samples


@pytest.fixture(scope="module")
def on_device(digits):
    return DeviceData(digits)


@pytest.mark.parametrize("groups", [2, 4])
def test_clients_are_rotated_by_their_group(digits, on_device, groups):
    partition = make_partition(IID(clients=8, transform="rotation", groups=groups), digits)
    assert partition.truth == tuple(k * groups // 8 for k in range(8))
    for client, group in enumerate(partition.truth):
        samples = client_samples(on_device, partition, client)
        original = torch.from_numpy(np.array(digits.train_x[partition.samples_of(client)]))
        assert torch.equal(samples.raw(), torch.rot90(original, group * 4 // groups, dims=(-2, -1)))
        assert torch.equal(samples.y(), torch.from_numpy(digits.train_y[partition.samples_of(client)]))
        assert torch.equal(samples.x(), samples.raw().float() / 255)
    assert torch.equal(on_device.train_x, torch.from_numpy(np.array(digits.train_x)))


def test_half_a_turn_is_half_a_turn(build):
    partition = make_partition(IID(clients=2, transform="rotation"), build([0] * 8))
    data = DeviceData(build([0] * 8))
    turned = client_samples(data, partition, 1)
    assert torch.equal(turned.raw(), data.train_x[turned.index].flip(-1, -2))


def test_permuted_labels(digits, on_device):
    partition = make_partition(IID(clients=8, transform="label_permutation", groups=4), digits, seed=1)
    maps = {partition.transformations[t].labels for t in np.unique(partition.transformation)}
    assert len(maps) == 4
    assert () in maps
    for client, group in enumerate(partition.truth):
        labels = partition.transformations[partition.transformation[partition.client == client][0]].labels
        original = digits.train_y[partition.samples_of(client)]
        given = client_samples(on_device, partition, client).y().numpy()
        if group == 0:
            assert np.array_equal(given, original)
        else:
            assert sorted(labels) == list(range(10))
            assert np.array_equal(given, np.array(labels)[original])
    other = make_partition(IID(clients=8, transform="label_permutation", groups=4), digits, seed=2)
    assert other.transformations != partition.transformations


def test_each_group_swaps_a_pair_of_its_own(digits, on_device):
    partition = make_partition(IID(clients=4, transform="label_swap", groups=4), digits)
    for group in range(4):
        original = digits.train_y[partition.samples_of(group)]
        given = client_samples(on_device, partition, group).y().numpy()
        a, b = 2 * group, 2 * group + 1
        expected = np.where(original == a, b, np.where(original == b, a, original))
        assert np.array_equal(given, expected)
        assert not np.array_equal(given, original)


def test_samples_of_clients_of_several_groups_are_turned_by_their_own(digits, on_device):
    partition = make_partition(IID(clients=4, transform="rotation", groups=4), digits)
    samples = all_samples(on_device, partition)
    positions = torch.arange(0, len(samples), 7)
    assert torch.equal(samples.raw()[positions], samples.raw(positions))
    turned = torch.nonzero(samples.transformation == 3)[5]
    assert torch.equal(samples.raw()[turned], torch.rot90(on_device.train_x[samples.index[turned]], 3, dims=(-2, -1)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transform": "rotation", "groups": 3}, "groups is 3, expected 2 or 4"),
        ({"transform": "rotation", "groups": 1}, "expected 2 or 4"),
        ({"transform": "rotation", "groups": 4, "clients": 3}, "groups is 4 with 3 clients"),
        ({"transform": "label_swap", "groups": 6, "clients": 8}, "lower groups"),
    ],
)
def test_impossible_transformations(digits, settings, message):
    with pytest.raises(PartitionError, match=message):
        make_partition(IID(**settings), digits)


def test_transformations_that_do_not_fit_the_data(build):
    with pytest.raises(PartitionError, match=r"needs square images.*shape \(1, 4, 6\)"):
        make_partition(IID(transform="rotation"), build([0, 1] * 10, shape=(1, 4, 6)))
    with pytest.raises(PartitionError, match="holds vectors"):
        make_partition(IID(transform="rotation"), build([0, 1] * 10, shape=(4,), kind="vector"))
    with pytest.raises(PartitionError, match="has no labels"):
        make_partition(IID(transform="label_swap"), build(20))
    with pytest.raises(PartitionError, match="distinct permutations of 2 labels"):
        make_partition(IID(transform="label_permutation", groups=3), build([0, 1] * 10))


def test_samples_without_labels(build):
    data = build(20)
    samples = all_samples(DeviceData(data), make_partition(IID(clients=2), data))
    assert len(samples) == 20
    with pytest.raises(ValueError, match="no labels"):
        samples.y()


def test_text_and_vectors_stay_as_they_are(build):
    for kind, dtype in (("text", torch.int32), ("vector", torch.float32)):
        data = build([0, 1] * 10, shape=(6,), kind=kind)
        samples = client_samples(DeviceData(data), make_partition(IID(clients=2), data), 0)
        assert samples.x().dtype == dtype
        assert torch.equal(samples.x(), samples.raw())
