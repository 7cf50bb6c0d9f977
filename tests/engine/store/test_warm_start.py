"""A run that starts from another run's state: the same bits each time, and nothing but what fits is taken over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from shoal.engine.store.checkpoint import load_round
from shoal.engine.store.codec import StoreError
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.warm_start import ORIGIN, WarmStart, WarmStartError, origin_sha256
from shoal.lifecycle.starting import find_like, new_run, runs_like
from shoal.methods.features.centre_clustering import CENTRES, GRAND_MEAN
from shoal.review.results.result import run_result
from tests.runs import go_on, numbers, straight

Make = Callable[..., Any]


def gone_on(settings: Any, origin: WarmStart, watch: Any = ()) -> RunFolder:
    run = new_run(settings, origin=origin)
    go_on(run, observers=watch)
    return run


@pytest.mark.long
def test_the_same_origin_gives_the_same_bits_also_when_interrupted(home: Any, small: Make) -> None:
    before = straight(small(rounds=2, checkpoint={"keep": 3}))
    origin = WarmStart.from_run(before)
    settings = small(rounds=2, data={"limit": 300}, partition={"clients": 4}, checkpoint={"keep": 3})
    run = gone_on(settings, origin)
    started = load_round(run, 0).server
    for name, tensor in load_round(before, 2).server.tensors.items():
        assert torch.equal(started.tensors[name], tensor), name
    assert (started.round, started.finished, run.status().round) == (0, False, 2)
    assert run.lineage().origin.run == before.name
    assert origin_sha256(run) == before.status().weights_sha256
    assert numbers(gone_on(settings, origin)) == numbers(run)
    assert numbers(straight(settings)) != numbers(run)

    def stop(event: Event) -> None:
        if event.kind == "round_finished" and event.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gone_on(settings, origin, [stop])
    halted = RunFolder.find("latest")
    go_on(halted)
    assert numbers(halted) == numbers(run)


def test_a_run_that_goes_on_is_no_run_of_these_settings_that_started_again(home: Any, small: Make) -> None:
    before = straight(small(rounds=1))
    origin = WarmStart.from_run(before)
    settings = small(rounds=1, seed=1)
    run = gone_on(settings, origin)
    assert [each.name for each in runs_like(settings, origin.sha256)] == [run.name]
    assert list(runs_like(settings)) == []
    assert find_like(settings) is None
    assert find_like(small(rounds=1)) is not None


def test_federated_k_means_goes_on_from_the_space_and_the_centres(home: Any, small: Make) -> None:
    method = {"name": "fedkmeans"}
    first = straight(small(method=method, rounds=30, data={"limit": 200}))
    settings = small(method=method, rounds=30)
    run = gone_on(settings, WarmStart.from_run(first))
    before, after = read_state(first).server, read_state(run).server
    assert torch.equal(after.model[GRAND_MEAN], before.model[GRAND_MEAN])
    assert not torch.equal(after.model[CENTRES], before.model[CENTRES])
    assert run_result(run).metrics["acc"] > 0.55
    with pytest.raises(WarmStartError, match="is not one from which fedkmeans goes on"):
        new_run(small(method=method, model={"clusters": 7}), origin=WarmStart.from_run(first))


def test_what_does_not_fit_is_refused_before_any_work(home: Any, small: Make) -> None:
    origin = WarmStart.from_run(straight(small(rounds=1)))
    runs = len(list((home / "runs").glob("*/settings.yaml")))
    with pytest.raises(
        WarmStartError, match=r"tensor 'cluster\..*' of its state is .*\(10.*expected .*\(7.*start a new run"
    ):
        new_run(small(model={"clusters": 7}), origin=origin)
    with pytest.raises(WarmStartError, match="is not one from which kmeans goes on with these settings"):
        new_run(small(method={"name": "kmeans"}, rounds=1), origin=origin)
    assert len(list((home / "runs").glob("*/settings.yaml"))) == runs
    fresh = new_run(small())
    with pytest.raises(WarmStartError, match="has no finished round to start from"):
        WarmStart.from_run(fresh)


def test_a_changed_origin_is_noticed(home: Any, small: Make) -> None:
    run = new_run(small(rounds=1), origin=WarmStart.from_run(straight(small(rounds=1))))
    path = run.path / ORIGIN
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(StoreError, match=ORIGIN):
        go_on(run)
    assert run.status().state == "failed"
