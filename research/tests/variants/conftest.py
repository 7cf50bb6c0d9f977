"""The planted sets of the product's tests of methods."""

from tests.methods.conftest import client_list, make_world, world  # noqa: F401
from tests.methods.uifca.conftest import federated, unlabelled  # noqa: F401
from tests.methods.uifca.test_uifca import blobs  # noqa: F401
