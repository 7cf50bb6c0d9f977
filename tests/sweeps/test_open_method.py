"""A search that names no method: chosen once, told, and the same in all trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import ShoalError
from shoal.data.intake.own import add_table
from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.sweeps.search import open_method
from shoal.sweeps.search.caveats import caveats
from shoal.sweeps.search.definition import check_search, make_search
from shoal.sweeps.search.open_method import FILE, with_chosen_method
from shoal.sweeps.search.runner import run_search

QUIET = {"mlflow": False, "prefect": "off"}
SEARCH: dict[str, Any] = {
    "name": "open",
    "settings": {
        "data": {"name": "readings"},
        "model": {"clusters": 3},
        "rounds": 3,
        "workers": {"slots": 1},
        "tracking": QUIET,
    },
    "vary": {"method.space": {"choices": ["directions", "plain"]}},
    "sampler": "grid",
    "pruner": "none",
    "trials": 1,
}


@pytest.fixture
def readings(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of three groups, the columns of which have different units."""
    monkeypatch.setattr("shoal.lifecycle.driving.show", lambda *_: None)
    random = np.random.default_rng(0)
    group = np.arange(90) % 3
    x = (random.normal(size=(90, 4)) + 8 * group[:, None]) * np.array([1.0, 2.0, 5.0, 1000.0])
    table = pd.DataFrame(x, columns=list("abcd"))
    table.insert(0, "client", [f"site-{each % 2}" for each in range(90)])
    table.to_csv(tmp_path / "readings.csv", index=False)
    add_table(tmp_path / "readings.csv", "readings", places.store(), licence="none")


@pytest.mark.long
def test_the_method_is_chosen_once_and_told(readings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    definition = make_search(SEARCH)
    check_search(definition)
    chosen = with_chosen_method(definition, told.append)
    (sentence,) = told
    assert sentence.startswith("All trials have the method fedkmeans, which auto chose: 45 samples a client: ")
    settings = chosen.settings_with({"method.space": "directions"})
    assert (settings.method.name, settings.method.standardise, settings.method.space) == (
        "fedkmeans",
        True,
        "directions",
    )
    assert settings.rounds == 3, "what the search names wins"
    result = run_search(chosen)
    assert sentence in caveats(chosen, result)
    # The choice stays, although the rules would choose another method now.
    monkeypatch.setattr(open_method, "choose_method", lambda *_: pytest.fail("it was chosen before"))
    more = run_search(make_search({**SEARCH, "trials": 2}))
    assert more.trials[0] == result.trials[0]
    runs = [RunFolder.find(name, places.runs()) for trial in more.trials for name in trial.runs]
    assert [run.settings().method.name for run in runs] == ["fedkmeans"] * 2
    assert {run.settings().method.space for run in runs} == {"directions", "plain"}
    assert all(trial.state == "finished" for trial in more.trials)


def test_a_setting_that_the_chosen_method_does_not_use_is_refused(readings: None) -> None:
    definition = make_search({**SEARCH, "vary": {"local.lr": {"choices": [0.001, 0.1]}}})
    check_search(definition)
    with pytest.raises(ShoalError, match=r"'fedkmeans', which trains nothing, so that local.lr has no effect"):
        with_chosen_method(definition)
    assert not (places.searches() / "open" / FILE).exists()
    with pytest.raises(ShoalError, match="gamma_max"):
        with_chosen_method(make_search({**SEARCH, "vary": {"method.gamma_max": {"choices": [0.1, 0.2]}}}))


def test_another_search_under_the_same_name_does_not_replace_the_choice(readings: None) -> None:
    run_search(make_search(SEARCH))
    before = (places.searches() / "open" / FILE).read_bytes()
    other = {**SEARCH, "settings": {**SEARCH["settings"], "model": {"clusters": 4}}}
    with pytest.raises(ShoalError, match="exists with another definition"):
        run_search(make_search(other))
    assert (places.searches() / "open" / FILE).read_bytes() == before
