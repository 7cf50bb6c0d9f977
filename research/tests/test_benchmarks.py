"""The benchmark's engines do the same arithmetic."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from shoal.data.sets.prepared import open_prepared
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal_research.benchmarks import gpu_probe, large_vectors, many_clients, steps
from shoal_research.benchmarks.device import Case, measure, next_round, world
from shoal_research.benchmarks.engines import batched, one_process
from shoal_research.benchmarks.file_creation import costs
from shoal_research.benchmarks.orchestration import beside_training
from shoal_research.benchmarks.peers import table
from shoal_research.benchmarks.profile_round import profile
from shoal_research.benchmarks.shoal_run import prepare_workload, run_workload, settings_of
from shoal_research.benchmarks.workload import Workload
from tests.sources import ROOT

TINY = Workload(clients=2, samples=20, batch=10, rounds=2)


def test_clients_one_by_one_and_batched_end_at_the_same_weights() -> None:
    threads = torch.get_num_threads()
    one, marks = one_process(TINY, threads, 1)
    all_at_once, _ = batched(TINY, threads, 1)
    assert len(marks) == 3
    torch.testing.assert_close(one, all_at_once, atol=1e-5, rtol=1e-4)
    assert one.numel() == 80_202


def test_the_run_is_of_the_workloads_sizes(tmp_path: Path) -> None:
    name = prepare_workload(TINY, tmp_path)
    prepared = open_prepared(tmp_path / "prepared" / name)
    assert prepared.train_x.shape == (42, 1, 28, 28)
    settings = make_settings(json.loads(json.dumps(settings_of(TINY, name, 2))))
    validation = max(1, round(21 * settings.partition.validation))
    assert 21 - validation == TINY.samples


def test_the_table_has_ratios() -> None:
    row = {"round_s": 1.0, "round_cpu_s": 1.0, "first_round_s": 2.0, "job_s": 9.0, "runs": 3}
    rows = [
        {"engine": "plain torch, 1 thread", "clients_per_s": 10.0, **row},
        {"engine": "Shoal, 2 slots", "clients_per_s": 15.0, **row},
    ]
    assert "over that of plain torch, 1 thread: 1.50" in table({"rows": rows})


def test_what_is_beside_training_is_counted_from_end_to_end() -> None:
    rounds = [
        {"round": r, "clients": 4, "finished_at": end, "seconds_aggregate": 0.02}
        for r, end in enumerate((10.0, 14.2, 18.1, 30.0), start=1)
    ]
    first, second = beside_training(rounds, {1: 4.0, 2: 4.0, 3: 3.0, 4: 4.0})
    assert abs(first["ms_a_client"] - 50) < 1e-6
    assert abs(first["share"] - 0.2 / 4.2) < 1e-9
    assert abs(second["rest_s"] - 0.9) < 1e-9
    assert second["client_s"] == 0.75


def test_a_device_is_measured_in_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    measure(Case("tiny", "fedavg", "plain-conv", (1, 8, 8), 3, 20, 1, 10), "cpu", "fp32", [2, 9], 1)
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()]
    assert [row[2].strip() for row in rows] == ["by hand", "one by one", "2 together"], "nine of three are not tried"
    assert all(float(row[4]) > 0 for row in rows)
    measure(Case("tiny", "fedpnp", "tiny-conv", (1, 8, 8), 1, 20, 1, 10), "cpu", "fp32", [], 1)
    assert "local epochs of 10,000 images" in capsys.readouterr().out


def test_steps_are_timed_beside_loops_by_hand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "SAMPLES", 64)
    monkeypatch.setattr(steps, "BATCH", 32)
    monkeypatch.setattr(steps, "SETTLING_SAMPLES", 32)
    steps.main(["--repeats", "1", "--encoder", "tiny-conv"])
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:4]]
    assert [row[1].strip() for row in rows] == ["fedpnp", "ssd"]
    assert all(float(cell) > 0 for row in rows for cell in row[2:5])


def test_the_profile_finds_every_part_of_a_step() -> None:
    spent, total = profile("tiny-conv", 1)
    assert len(spent) == 9
    assert min(spent.values()) > 0, "a part was never entered"
    assert sum(spent.values()) < total


@pytest.mark.slow
def test_runs_of_many_clients_take_turns() -> None:
    rows = many_clients.in_turn([12, 24], [3, 12], ["--samples", "10", "--chosen", "5", "--instant"])
    assert [(row["clients"], row["round"]) for row in rows] == [(12, 3), (24, 3), (12, 12), (24, 12)]
    assert all(row["cpu_s"] > 0 for row in rows)


BENCHMARKS = ROOT / "research" / "shoal_research" / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_every_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(f"shoal_research.benchmarks.{name}")


def test_instant_workers_have_the_driver_do_what_it_does_for_real_ones(
    home: Path,
) -> None:
    """Every client of a round is counted and keeps a memory of its own, which takes no room."""
    turns: list[int] = []
    (found,) = many_clients.one(12, 10, 5, 4, [3], instant=True, turn=lambda: turns.append(1))
    assert found["a_round"] == 5
    assert len(turns) == 3, "before each round but the first"
    assert found["memory_files"] > 5
    (run,) = (path for path in places.runs().iterdir() if (path / "settings.yaml").exists())
    clients = RunFolder(run).table("clients")
    assert list(clients.groupby("round").size()) == [5] * 4
    memories = {path.name: path.stat() for path in (run / "memory").rglob("*.safetensors")}
    assert all(each.st_nlink == 1 and each.st_size < 100 for each in memories.values())


def test_files_are_made_and_removed_again(tmp_path: Path) -> None:
    found = costs(tmp_path, 3, files=5, pause=0.0)
    assert len(found) == 3
    assert all(seconds > 0 for seconds in found)
    assert not list(tmp_path.iterdir())


def test_the_probe_finds_captured_and_joint_steps_right(capsys: pytest.CaptureFixture[str]) -> None:
    gpu_probe.main(["--device", "cpu", "--precision", "fp32", "--methods", "fedsimclr", "fedavg", "--shrink", "100"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["method"] for row in rows[:2]] == ["fedsimclr", "fedavg"]
    assert all(row["captured bits"] and row["together"] and row["captured ms"] > 0 for row in rows[:2])
    assert rows[2]["method"] == "fedsimclr"
    assert min(rows[2][part] for part in ("round s", "evaluation s", "last evaluation s")) > 0
    assert rows[3] == {"rounds": 3, "MB after 2": 0.0, "MB after all": 0.0, "grows": False}
    assert rows[4]["wrong"] == 0


def test_the_probe_tells_what_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_probe, "same_bits", lambda one, other: False)
    with pytest.raises(SystemExit):
        gpu_probe.main(["--device", "cpu", "--precision", "fp32", "--methods", "fedavg", "--shrink", "100"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["wrong"] == 1


def test_fedpnp_is_timed_with_its_past_model() -> None:
    method, cohort = world(Case("tiny", "fedpnp", "tiny-conv", (1, 8, 8), 2, 20, 1, 10), "cpu", "fp32")
    for message, client in next_round(method, cohort):
        assert client.streams.round == 2
        assert message.facts["alpha"] == method.settings.alpha
        assert "past" in method.local_steps(message, client).companions


@pytest.mark.slow
def test_large_vectors_are_added_clustered_and_written_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    added, run = large_vectors.trial(tmp_path, rows=600, width=8, clients=3, clusters=4, slots=1)
    assert "600 rows in the table of clusters" in capsys.readouterr().out
    assert min(added.anonymous, run.anonymous) > 1e7
    assert min(added.cpu, run.cpu) > 0


def test_planted_vectors_come_from_all_clients(tmp_path: Path) -> None:
    truth = large_vectors.write_vectors(tmp_path, rows=50, width=8, clients=3, clusters=4)
    x = np.load(tmp_path / "x.npy")
    assert x.shape == (50, 8)
    assert x.dtype == np.float32
    assert set(pd.read_csv(tmp_path / "clients.csv")["client"]) == {0, 1, 2}
    within = sum(x[truth == k].var(0).sum() * (truth == k).sum() for k in range(4))
    assert within < 50 * x.var(0).sum()


def test_the_runs_of_the_benchmark_before_are_cleared(home: Path) -> None:
    (places.runs() / "old").mkdir(parents=True)
    weights, marks = run_workload(TINY, 1)
    assert weights.numel() == 80_202
    assert len(marks) == 1 + TINY.rounds
    assert not (places.runs() / "old").exists()


SHRUNK: dict[str, tuple[str, ...]] = {
    "peers": ("--only", "plain", "shoal", "--repeats", "1", "--clients", "2", "--samples", "20", "--rounds", "2"),
    "many_clients": ("--clients", "4", "--rounds", "2", "--at", "2", "--chosen", "2"),
    "orchestration": ("--cases", "1", "--rounds", "3"),
    "command_line": ("--repeats", "1"),
    "steps": ("--repeats", "1", "--encoder", "tiny-conv"),
    "profile_round": ("--repeats", "1", "--encoder", "tiny-conv"),
    "device": ("--repeats", "1", "--shrink", "100"),
}
"""The benchmarks of `make bench`, with what makes them small."""


def test_what_make_runs_is_tried_out() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\nbench: ")[1].split("\n\n")[0]
    assert set(re.findall(r"-m shoal_research\.benchmarks\.(\w+)", recipe)) == SHRUNK.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", SHRUNK)
def test_every_benchmark_runs_to_its_end(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"shoal_research.benchmarks.{name}", *SHRUNK[name]]
    environment = {**os.environ, "SHOAL_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "|" in done.stdout
