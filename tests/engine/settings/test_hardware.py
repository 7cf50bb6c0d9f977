"""What a machine offers a run, and what becomes of a run that began on a GPU where there is none."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.engine.cluster.cluster_work import work
from shoal.engine.messages.wire import Evaluate, Failure
from shoal.engine.settings.hardware import device_here, resolve_machine, resolve_slots, slots_per_gpu
from shoal.engine.settings.machine import RunHardware
from shoal.engine.settings.run_settings import SettingsError
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import INTERRUPTED
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from tests.evaluation import evaluate_state
from tests.runs import stopped

NO_GPU = r"workers\.device: the run began on a GPU \(cuda\), and torch sees no GPU here: resume it on a machine"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.parametrize("slots", ["auto", 2])
@pytest.mark.usefixtures("no_gpu")
def test_a_run_that_began_on_a_gpu_is_not_resumed_without_one(
    home: Path, small: Callable[..., Any], slots: int | str
) -> None:
    settings = small(method={"name": "fedcc"}, data={"limit": 60}, workers={"slots": slots})
    run = stopped(settings, "round_finished", 1)
    run.set_lineage(resolved=RunHardware("cuda", "bf16"))
    before = run.status()
    with pytest.raises(SettingsError, match=NO_GPU) as told:
        drive(RunFolder(run.path))
    assert "\n" not in str(told.value)
    assert run.status() == before
    assert before.state == INTERRUPTED
    # What it has come to can be judged all the same.
    assert evaluate_state(run)["acc"] > 0


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_there_are_no_slots_on_one() -> None:
    with pytest.raises(SettingsError, match=NO_GPU):
        resolve_slots("auto", "cuda")
    assert resolve_slots(3, "cpu") == 3
    assert device_here("cuda") == device_here("cpu") == "cpu"


def test_slots_are_of_every_gpu_and_a_state_is_judged_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (13 << 30, 80 << 30))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    assert resolve_slots("auto", "cuda") == 6
    assert (device_here("cuda"), device_here("cpu")) == ("cuda", "cpu")


@pytest.mark.usefixtures("no_gpu")
def test_a_driver_without_a_gpu_uses_those_of_a_running_cluster(home: Path, small: Callable[..., Any]) -> None:
    there = {"runner": "dask", "address": "tcp://gpu-host:8786", "device": "cuda", "precision": "auto"}
    settings = small(method={"name": "fedcc"}, data={"limit": 60}, workers=there | {"slots": "auto"})
    assert resolve_machine(settings) == RunHardware("cuda", "fp32")
    assert new_run(settings).lineage().resolved.device == "cuda"
    with pytest.raises(SettingsError, match=r"workers\.device is cuda, and torch sees no GPU here"):
        resolve_machine(small(method={"name": "fedcc"}, workers=there | {"runner": "local"}))
    with pytest.raises(SettingsError, match=r"workers\.runner=dask needs the scheduler of a running cluster"):
        small(workers=there | {"address": None})


@pytest.mark.usefixtures("no_gpu")
def test_a_worker_without_a_gpu_says_so(tmp_path: Path) -> None:
    request = Evaluate(tmp_path / "run", 1, tmp_path / "state", (), final=False)
    answer = work(request, "cuda")
    assert isinstance(answer, Failure)
    assert "torch sees none there: start workers only on hosts that have one" in answer.error


def test_tf32_is_of_gpus(small: Callable[..., Any]) -> None:
    with pytest.raises(SettingsError, match=r"workers\.precision is tf32"):
        resolve_machine(small(workers={"precision": "tf32", "device": "cpu"}))


HELD = """
from pathlib import Path
from shoal.engine.settings.hardware import keep_freed_memory, release_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

keep_freed_memory()
blocks = [bytes(bytearray(1 << 20)) for _ in range(200)]
del blocks
before = resident()
release_freed_memory()
print(before - resident())
"""


@pytest.mark.long
def test_kept_memory_can_be_released() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 100 << 20, "of 200 MB"


FAULTS = """
import resource, sys, threading
from shoal.engine.settings.hardware import keep_freed_memory, one_arena

if sys.argv[1] == "one":
    one_arena()
keep_freed_memory()
counts = []

def take():
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        blocks = [bytearray(40 << 20), bytearray(40 << 20)]  # of which one fits into an arena's first piece
        counts.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
        del blocks

thread = threading.Thread(target=take)
thread.start()
thread.join()
print(counts[-1])
"""


@pytest.mark.long
def test_threads_get_large_blocks_again_that_they_have_freed() -> None:
    def faults(arenas: str) -> int:
        command = [sys.executable, "-c", FAULTS, arenas]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
        return int(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)

    one, several = faults("one"), faults("several")
    if platform.libc_ver()[0] == "glibc":  # another C library has no such arenas: asking it for one does no harm
        assert 10 * (one + 1) < several  # of small pages some 10,000, of huge ones some 20


@pytest.mark.parametrize(("free", "cores", "expected"), [(80, 16, 5), (10, 16, 2), (80, 3, 3), (1, 16, 1)])
def test_as_many_slots_share_a_gpu_as_memory_and_cores_allow(
    monkeypatch: pytest.MonkeyPatch, free: int, cores: int, expected: int
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    assert slots_per_gpu() == expected
    assert resolve_slots("auto", "cuda") == expected
