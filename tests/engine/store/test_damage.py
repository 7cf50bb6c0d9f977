"""A file that was changed after it was written is noticed: it is named, and what is computed is right or nothing."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import yaml

from shoal.core.errors import DataError, ShoalError
from shoal.core.seal import BrokenSeal, sealed, unsealed
from shoal.data.sets.prepared import read_manifest
from shoal.engine.messages.client_numbers import metrics_fault
from shoal.engine.messages.wire import TrainAnswer
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.rounds.privacy import Ledger
from shoal.engine.store.checkpoint import load_manifest, load_round
from shoal.engine.store.codec import StoreError, load_tensors, save_tensors
from shoal.engine.store.finished_work import finished_work
from shoal.engine.store.manifest import COUNTED
from shoal.engine.store.round_paths import MEMORIES, RoundPaths
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.starting import find_like, new_run
from shoal.methods.fedpnp.fedpnp import FedPNP
from tests.runs import go_on, numbers, stopped, straight

pytestmark = pytest.mark.long

Make = Callable[..., Any]
CFCL: dict[str, Any] = {
    "method": {"name": "cfcl", "steps": 6, "tau_a": 3, "tau_p": 2, "reserve": 5, "budget": 4},
    "partition": {"kind": "labels_per_client", "labels": 2, "clients": 3},
    "model": {"encoder": "pooled-conv"},
    "rounds": 50,
}


def flip(path: Path, place: float = 0.7) -> None:
    """Flip a bit; the size stays."""
    raw = bytearray(path.read_bytes())
    raw[int(place * len(raw))] ^= 4
    path.write_bytes(raw)


def zero(path: Path) -> None:
    """The same tensors, all of them zero."""
    tensors, facts = load_tensors(path)
    save_tensors(path, {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, facts)


def swap(path: Path, other: Path) -> None:
    """Two files in each other's place."""
    first, second = path.read_bytes(), other.read_bytes()
    assert first != second
    path.write_bytes(second)
    other.write_bytes(first)


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON file, as somebody would by hand."""
    about = json.loads(path.read_text())
    change(about)
    path.write_text(json.dumps(about))


def copy_of(run: RunFolder, place: Path) -> RunFolder:
    shutil.copytree(run.path, place / run.name)
    return RunFolder(place / run.name)


def memories(run: RunFolder, round: int) -> list[Path]:
    return [run.path / path for path in sorted(load_round(run, round).memory_index.files())]


def test_every_kind_of_damage_to_a_checkpoint_falls_back_to_the_round_before(home: Path, small: Make) -> None:
    """And the run ends with the bits of one that was never touched, having said which file it was."""
    settings = small(rounds=4)
    whole = numbers(straight(settings))
    run = stopped(settings, "round_finished", 2)

    def newest(run: RunFolder, name: str) -> Path:
        return run.rounds / "0002" / name

    def numbers_of(about: dict[str, Any]) -> None:
        about["record"]["clients"][0]["samples"] += 1

    damages: dict[str, Callable[[RunFolder], None]] = {
        "memory flipped": lambda run: flip(memories(run, 2)[0]),
        "memory zeroed": lambda run: zero(memories(run, 2)[1]),
        "memories swapped": lambda run: swap(*memories(run, 2)[:2]),
        "memory of an older round": lambda run: shutil.copy(memories(run, 1)[0], memories(run, 2)[0]),
        "memory missing": lambda run: memories(run, 2)[0].unlink(),
        "memories zeroed": lambda run: zero(newest(run, MEMORIES)),
        "memories of another round": lambda run: shutil.copy(run.rounds / "0001" / MEMORIES, newest(run, MEMORIES)),
        "numbers changed": lambda run: edit(newest(run, "manifest.json"), numbers_of),
        "manifest of another round": lambda run: shutil.copy(
            run.rounds / "0001" / "manifest.json", newest(run, "manifest.json")
        ),
        "state ends the run": lambda run: ended_early(newest(run, "server.safetensors")),
        "state of another round": lambda run: shutil.copy(
            run.rounds / "0001" / "server.safetensors", newest(run, "server.safetensors")
        ),
        "state zeroed": lambda run: zero(newest(run, "server.safetensors")),
        "state cut short": lambda run: os.truncate(newest(run, "server.safetensors"), 1000),
    }
    for what, damage in damages.items():
        damaged = copy_of(run, home / what.replace(" ", "_"))
        damage(damaged)
        go_on(damaged)
        passed = [e.message for e in damaged.events() if e.kind == "checkpoint_unreadable"]
        assert len(passed) == 1, what
        assert "the checkpoint of round 2 is skipped" in passed[0], what
        assert str(damaged.path) in passed[0], what
        assert numbers(damaged) == whole, what


def ended_early(path: Path) -> None:
    tensors, about = load_tensors(path)
    save_tensors(path, tensors, {**about, "finished": True})


def test_what_a_state_was_judged_with_has_a_digest_too(home: Path, small: Make) -> None:
    run = straight(small(rounds=1, evaluate={"recalibrate": 60}))
    judged = run.rounds / "0001" / "judged.safetensors"
    assert load_round(run, 1).statistics
    zero(judged)
    with pytest.raises(StoreError, match=r"judged.safetensors has been changed or damaged"):
        load_round(run, 1)
    judged.unlink()
    with pytest.raises(StoreError, match=r"judged.safetensors is missing"):
        load_round(run, 1)


def test_a_damaged_old_manifest_costs_its_rows_and_not_the_run(home: Path, small: Make) -> None:
    settings = small(rounds=4)
    whole = straight(settings)
    run = stopped(settings, "round_finished", 3)
    flip(run.rounds / "0001" / "manifest.json")
    with mock.patch.dict(sys.modules, {"opacus": None}):  # nothing is accounted: nothing of it is needed
        go_on(run)
    assert run.status().weights_sha256 == whole.status().weights_sha256
    assert list(run.table("rounds")["round"]) == [2, 3, 4]
    (told,) = [e.message for e in run.events() if e.kind == "manifest_unreadable"]
    assert "round 1 is missing from the tables" in told
    assert len([e for e in run.events() if e.kind == "manifest_unreadable"]) == 1, "who reads tells nothing"


def test_a_missing_manifest_is_told_of_too(home: Path, small: Make) -> None:
    run = stopped(small(rounds=3), "round_finished", 2)
    shutil.rmtree(run.rounds / "0001")
    go_on(run)
    assert list(run.table("rounds")["round"]) == [2, 3]
    (told,) = [e.message for e in run.events() if e.kind == "manifest_unreadable"]
    assert "is missing" in told


def test_with_a_damaged_manifest_no_less_is_accounted(home: Path, small: Make) -> None:
    """Of the lost round it is only known that somebody told something."""
    settings = small(rounds=3, privacy={"clip": 0.5, "noise": 0.8}, participation={"fraction": 0.34})
    whole = straight(settings).table("rounds")
    run = stopped(settings, "round_finished", 2)
    flip(run.rounds / "0001" / "manifest.json")
    go_on(run)
    ledger = Ledger(0.8)
    for _ in range(3 if one_client(whole) else 2):
        ledger.add([0], [10])
    last = run.table("rounds").iloc[-1]
    assert last["epsilon_sent"] >= whole.iloc[-1]["epsilon_sent"]
    assert last["epsilon_sent"] >= ledger.spent(1e-5).sent
    assert last["epsilon_mean"] >= whole.iloc[-1]["epsilon_mean"]


def one_client(rounds: Any) -> bool:
    """Whether the same client told something in every round: a round then costs what it costs one client."""
    steps = rounds["epsilon_sent"].diff().dropna()
    return bool((steps > 0).all())


@pytest.mark.parametrize("batched", [1, 2])
def test_an_answer_damaged_before_it_is_aggregated_ends_the_run_and_is_made_again(
    home: Path, small: Make, batched: int
) -> None:
    """When the run is resumed: to the same bits, and it is not held against its client."""
    settings = small(rounds=2, workers={"batched": batched})
    whole = straight(settings)
    run, worker = new_run(settings), Worker()
    spoilt: list[int] = []

    def rots(request: Any) -> Any:
        answer = worker.handle(request)
        if isinstance(answer, TrainAnswer) and request.round == 2 and 1 in answer.clients and not spoilt:
            spoilt.append(1)
            flip(RoundPaths(run.path, 2).work / answer.clients[1].update)
        return answer

    with pytest.raises(StoreError, match=r"update-1\.safetensors has been changed or damaged"):
        go_on(run, rots)
    go_on(run, rots)
    assert numbers(run) == numbers(whole)
    assert not load_manifest(run, 2).record.refusals


def test_a_message_that_waits_for_a_client_is_the_one_that_was_sent(home: Path, small: Make) -> None:
    settings = small(**CFCL)

    def waits(round: int) -> list[str]:
        return [path for path in load_round(run, round).memory_index.files() if "inbox" in path]

    for stop in range(1, 8):
        run = stopped(settings, "round_finished", stop)
        if waits(stop):
            break
    whole = copy_of(run, home / "whole")
    go_on(whole)
    waiting = waits(stop)[0]
    zero(run.path / waiting)
    go_on(run)
    assert numbers(run) == numbers(whole)
    assert any(waiting in e.message for e in run.events())


def test_a_worker_reads_no_memory_with_another_digest(home: Path, small: Make) -> None:
    """Also where the damage comes while the run is at work."""
    settings = small(rounds=3)
    whole = numbers(straight(settings))
    run = new_run(settings)

    def damage(entry: Event) -> None:
        if entry.kind == "round_finished" and entry.round == 1:
            zero(memories(run, 1)[2])

    with pytest.raises(ShoalError, match=r"0001.safetensors has been changed or damaged since it was written"):
        go_on(run, observers=[damage])
    go_on(run)
    assert numbers(run) == whole


def test_a_done_file_counts_only_as_it_was_written(home: Path, small: Make) -> None:
    settings = small(rounds=2)
    whole = numbers(straight(settings))
    run = stopped(settings, "client_finished", 2)
    done = sorted((run.work / "0002").glob("done-*.json"))
    first = int(done[0].stem.split("-")[1])
    assert finished_work(run, 2, first) is not None
    edit(done[0], lambda about: about.update(samples=1, bytes_up=7))
    assert finished_work(run, 2, first) is None
    go_on(run)
    assert numbers(run) == whole


def test_settings_and_lineage_are_those_that_the_run_was_started_with(home: Path, small: Make) -> None:
    settings = small(rounds=3)
    run = stopped(settings, "round_finished", 1)
    text = (run.path / "settings.yaml").read_text()
    (run.path / "settings.yaml").write_text(yaml.safe_dump({**yaml.safe_load(text), "seed": 9}, sort_keys=False))
    with pytest.raises(ShoalError, match=r"settings.yaml has been changed or damaged"):
        go_on(run)
    assert find_like(settings) is None, "nobody goes on with it unasked"
    (run.path / "settings.yaml").write_text(text[: text.rindex("\n", 0, -1) + 1])
    with pytest.raises(ShoalError, match=r"settings.yaml has been changed or damaged"):
        go_on(run)
    (run.path / "settings.yaml").write_text(text)
    lineage = (run.path / "lineage.json").read_text()
    edit(run.path / "lineage.json", lambda about: about["git"].update(commit="0" * 40))
    with pytest.raises(StoreError, match=r"lineage.json cannot be trusted"):
        go_on(run)
    (run.path / "lineage.json").write_text(lineage)
    go_on(run)
    assert numbers(run) == numbers(straight(settings))


def test_other_software_is_told_of_and_does_not_stop_a_run(home: Path, small: Make) -> None:
    run = stopped(small(rounds=2), "round_finished", 1)
    lineage = run.lineage()
    run.set_lineage(versions={**lineage.versions, "torch": "1.0"}, shoal=replace(lineage.shoal, sha256="0" * 64))
    go_on(run)
    (told,) = [e.message for e in run.events() if e.kind == "software_changed"]
    assert "torch 1.0 is now" in told
    assert "Shoal's files 0000000000 are now" in told
    again = stopped(small(rounds=2), "round_finished", 1)
    go_on(again)
    assert "software_changed" not in {e.kind for e in again.events()}


@pytest.mark.parametrize("name", ["train_x.npy", "train_y.npy", "test_x.npy"])
def test_prepared_data_are_compared_before_they_are_used(home: Path, small: Make, name: str) -> None:
    """Before a run starts, and before it is resumed."""
    run = stopped(small(rounds=2), "round_finished", 1)
    folder = run.folder_of("data")
    flip(folder / name)
    with pytest.raises(RoundFailed, match="do not match its manifest"):
        go_on(new_run(small(rounds=1, seed=1)))
    with pytest.raises(RoundFailed, match="do not match its manifest"):
        go_on(run)


def test_a_manifest_of_data_says_what_it_said(home: Path, small: Make) -> None:
    run = straight(small(rounds=1))
    folder = run.folder_of("data")
    edit(folder / "manifest.json", lambda about: about["class_names"].reverse() or about.update(licence="mine"))
    with pytest.raises(DataError, match=r"manifest.json .* changed or damaged"):
        read_manifest(folder)


def test_names_of_clients_are_part_of_what_a_partition_seals(home: Path, small: Make) -> None:
    run = straight(small(rounds=1))
    folder = run.folder_of("partition")
    edit(folder / "partition.json", lambda about: about.update(client_names=["a", "b", "c"]))
    with pytest.raises(ShoalError, match="changed or damaged"):
        new_run(small(rounds=1), folder)


def test_a_clients_metric_never_stands_for_what_is_counted(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in COUNTED:
        assert "counted by the engine" in (metrics_fault({"loss": 1.0, name: 2.0}) or "")
    real = FedPNP.client_update

    def lying(self: Any, message: Any, client: Any) -> Any:
        update = real(self, message, client)
        return replace(update, metrics={**update.metrics, "bytes_up": 0.0})

    monkeypatch.setattr(FedPNP, "client_update", lying)
    with pytest.raises(ShoalError, match="'bytes_up' is counted by the engine"):
        straight(small(rounds=1))


def test_a_run_folder_of_an_older_layout_is_refused(home: Path, small: Make) -> None:
    run = stopped(small(rounds=3), "round_finished", 2)
    edit(run.path / "lineage.json", lambda about: [about.pop(name) for name in ("seal", "layout")])
    with pytest.raises(StoreError, match=r"not the lineage .*entry layout is missing.*shoal run"):
        go_on(run)
    run = stopped(small(rounds=3), "round_finished", 2)
    edit(RoundPaths(run.path, 2).manifest, lambda about: [about.pop(name) for name in ("seal", "files")])
    with pytest.raises(StoreError, match="is not the manifest of a round: entry files is missing"):
        load_manifest(run, 2)


def test_a_seal_does_not_depend_on_the_order_of_entries() -> None:
    record = {"b": [1.5, float("1e-300")], "a": {"y": "²", "x": None}}
    again = json.loads(json.dumps(sealed(record)))
    assert unsealed(again) == record
    assert unsealed(dict(reversed(again.items()))) == record
    for broken in ({**again, "c": 1}, {**again, "b": [1.5, 0.0]}, {"seal": again["seal"], "a": again["a"]}):
        with pytest.raises(BrokenSeal):
            unsealed(broken)
    assert np.isclose(unsealed(again)["b"][0], 1.5)
