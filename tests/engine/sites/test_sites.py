"""Runs whose samples nobody has in one place, over real processes and pipes: the bits of a run that has them all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.settings import places
from shoal.engine.sites.gathering import gather_set
from shoal.engine.store.run_folder import RunFolder
from tests.conftest import at_home
from tests.runs import go_on, straight
from shoal.lifecycle.starting import new_run
from tests.sites import NAME, Federation, federation, joined_set

VALIDATED = {"validation": 0.3}
FLOWS = {"name": "uifca", "cluster_rounds": 2, "comm_rounds": 2, "steps": 3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedkmeans": ("vector", {"rounds": 4}),
    "fedgmm": ("vector", {"rounds": 6}),
    "fedsimclr_kmeans": ("image", {"method": {"kmeans_rounds": 3}, "rounds": 4}),
    "fedpnp": ("image", {}),
    "fedcc": ("image", {}),
    "uifca": ("points", {"method": FLOWS, "rounds": 4}),
    "kfed": ("points", {"rounds": 3}),
    "cfl": ("image", {"partition": VALIDATED, "method": {"criterion": "schedule", "schedule": [2], "gamma_max": 0.0}}),
    "ifca": ("image", {"partition": VALIDATED, "method": {"models": 2}}),
    "ssd": ("image", {}),
    "fedema": ("image", {}),
}


@pytest.fixture
def settings(small: Callable[..., Any]) -> Callable[..., Any]:
    def make(name: str) -> Any:
        kind, changes = CASES[name]
        model = {"image": {"encoder": "tiny-conv"}}.get(kind, {})
        from tests.conftest import SMALL
        from shoal.engine.settings.run_settings import make_settings
        values = {**SMALL, "data": {"name": NAME}, "model": model, "partition": {"kind": "by_column"}, **changes}
        values["partition"] = {"kind": "by_column", **changes.get("partition", {})}
        values["method"] = {"name": name, **changes.get("method", {})}
        return make_settings(values)

    return make


def local_run(sites: Federation, settings: Any, home: Path) -> RunFolder:
    with at_home(home):
        joined_set(places.store(), sites.sets)
        return straight(settings)


@pytest.mark.parametrize("name", CASES)
def test_same_bits(name: str, settings: Callable[..., Any], home: Path, tmp_path_factory: Any) -> None:
    with federation(CASES[name][0]) as sites:
        apart = local_run(sites, settings(name), tmp_path_factory.mktemp("one-place"))
        gather_set(NAME, sites.pipes, places.store())
        run = new_run(settings(name))
        go_on(run, sites.pool.call, slots=3)
        print(run.table("rounds").T.to_string())
        print(apart.table("rounds").T.to_string())
        assert run.status().weights_sha256 == apart.status().weights_sha256
