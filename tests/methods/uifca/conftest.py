"""Planted blobs on some clients."""

import pytest

from tests.methods.uifca.federated_blobs import Federated, blobs


@pytest.fixture(scope="session")
def federated(tmp_path_factory: pytest.TempPathFactory) -> Federated:
    """Eight clients with 30 points each, of all three blobs."""
    return blobs(tmp_path_factory.mktemp("blobs") / "blobs", 8, 30)


@pytest.fixture
def unlabelled(tmp_path) -> Federated:
    return blobs(tmp_path / "blobs", 3, 20, labels=False)
