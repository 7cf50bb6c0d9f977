"""A Prefect server for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flows.test_prefect import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    one = Server(tmp_path_factory.mktemp("prefect"))
    yield one
    one.stop()
