"""Worker processes of one host take its GPUs in turn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoal.engine.cluster import cluster_work, own_gpu
from shoal.engine.cluster.cluster_work import work
from shoal.engine.cluster.own_gpu import own_device, own_place
from shoal.engine.messages.wire import Train

PROGRAM = """
import sys
from shoal.engine.cluster.own_gpu import own_place
print(own_place(), own_place(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(own_gpu, "lock_folder", lambda: tmp_path / "places")
    monkeypatch.setattr(own_gpu, "_taken", {})


@pytest.mark.long
def test_processes_of_a_host_have_places_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", ":".join(p for p in sys.path if p))
    begun: list[subprocess.Popen[str]] = []

    def begin() -> str:
        command = [sys.executable, "-c", PROGRAM]
        begun.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert begun[-1].stdout is not None
        return begun[-1].stdout.readline().strip()

    try:
        assert [begin(), begin(), begin()] == ["0 0", "1 1", "2 2"]
        begun[1].kill()
        begun[1].wait()
        assert begin() == "1 1", "the place of one that ended is free"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        assert begin() == "0 0", "who sees other GPUs counts on its own"
    finally:
        for process in begun:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(("gpus", "place", "device"), [(2, 0, "cuda:0"), (2, 3, "cuda:1"), (1, 5, "cuda:0")])
def test_places_go_round_the_gpus(monkeypatch: pytest.MonkeyPatch, gpus: int, place: int, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(own_gpu, "own_place", lambda: place)
    assert own_device("cuda") == device
    assert own_device("cpu") == "cpu"


def test_without_a_gpu_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert own_device("cuda") == "cuda", "of which torch says what is wrong"
    assert not own_gpu._taken
    assert own_place() == 0


def test_work_of_a_cluster_computes_on_the_gpu_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(own_gpu, "own_place", lambda: 1)
    chosen: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(cluster_work._here, "workers", {}, raising=False)
    work(Train(Path("/nowhere/at/all"), 1, (), ()), "cuda")
    assert chosen == ["cuda:1"]
    assert cluster_work._here.workers["cuda"].device == "cuda:1"
