"""The short version of what outsiders try: it finds a careless folder, and nothing in Shoal's own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.engine.store.shared_temp import user_name
from tests.engine.store.test_shared_temp import IS_ROOT, link
from tests.outsiders import PLACES, PLANTED, Tried, planted, table

pytestmark = pytest.mark.skipif(not IS_ROOT, reason="only root can act as two users")


@pytest.fixture
def temp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that other users can enter, which pytest's own are not."""
    monkeypatch.delenv("SHOAL_CACHE", raising=False)
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("plant", PLANTED)
def test_nothing_that_another_user_plants_is_used(temp: Path, plant: Callable[[Path, Path], None]) -> None:
    for name, place in PLACES.items():
        assert planted(temp / name, f"{name}-{user_name()}", place, plant) is None


def test_a_careless_place_is_found(temp: Path) -> None:
    def careless() -> Path:
        return Path(tempfile.gettempdir()) / "shoal-cache"

    said = planted(temp / "one", "shoal-cache", careless, link)
    assert said is not None
    assert "a folder of the user's home was removed" in said
    assert "another user made" in said


def test_what_got_through_is_named() -> None:
    found = [Tried("another user", "reading", 2, ["a is read"]), Tried("a page", "asking", 3, [])]
    assert table(found).splitlines()[2:] == [
        "| another user | reading | 2 | 1 |",
        "| a page | asking | 3 | 0 |",
        "",
        "- another user: a is read",
    ]
