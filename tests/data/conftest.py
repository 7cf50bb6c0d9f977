import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_mirror():
    """The mirror of the real sets; a slow test without one fails, it is not skipped."""
    named = os.environ.get("SHOAL_DATA_MIRROR")
    folder = Path(named) if named else Path(__file__).parents[3] / "shared" / "datasets"
    if not folder.is_dir():
        pytest.fail(f"slow tests need the mirror of the real data sets: set SHOAL_DATA_MIRROR ({folder} is missing)")
    return folder
