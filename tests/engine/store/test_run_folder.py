"""The folder of a run: which one is the latest, who holds it, and who may read what clients leave in it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.core.records import record_to_json
from shoal.engine.settings import places
from shoal.engine.store import run_folder
from shoal.engine.store.codec import PRIVATE, StoreError, write_atomic, write_sealed
from shoal.engine.store.run_events import Event, line_of
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.store.run_order import in_order
from shoal.engine.store.status import FINISHED
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.claim import claimed_run
from shoal.lifecycle.starting import find_like, new_run
from tests.runs import straight

Make = Callable[..., Any]


class Clock:
    """A clock that stands still."""

    @classmethod
    def now(cls, zone: Any) -> Any:
        return __import__("datetime").datetime(2026, 1, 31, 12, tzinfo=zone)


def test_latest_is_the_run_that_was_started_last(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "datetime", Clock)
    made = [new_run(small(**NEXT)) for NEXT in ({}, {"method": {"name": "kmeans"}}, {})]
    assert sorted(run.name for run in made) != [run.name for run in made]
    assert [path.parent.name for path in in_order(places.runs())] == [run.name for run in made]
    assert RunFolder.find("latest").name == made[-1].name
    found = find_like(small())
    assert found is not None
    assert found.name == made[-1].name
    with claimed_run(small()) as claimed:
        assert claimed.name == made[-1].name
    (made[0].path / "settings.yaml").unlink()
    with pytest.raises(RunError, match=f"{made[0].name} has no settings.yaml: restore it"):
        RunFolder.find(made[0].name)
    made[1].path.rename(places.runs() / "20991231-000000_copied")
    assert RunFolder.find("latest").name == "20991231-000000_copied"


def test_latest_may_mean_the_last_finished_run(home: Path, small: Make) -> None:
    made = [new_run(small()) for _ in range(3)]
    with pytest.raises(RunError, match=rf"is finished yet \(there are 3 runs, the last one is {made[2].name}\)"):
        RunFolder.find("latest", unfinished=False)
    for run in made[:2]:
        run.set_finished(1, "0" * 64)
    assert RunFolder.find("latest", unfinished=False).name == made[1].name
    assert RunFolder.find("latest").name == made[2].name
    assert RunFolder.find(made[2].name, unfinished=False).name == made[2].name


@pytest.mark.long
def test_who_holds_a_run_goes_on_holding_it(home: Path, small: Make) -> None:
    run = new_run(small())
    other = f"from pathlib import Path; from shoal.engine.store.run_folder import RunFolder; r = RunFolder(Path({str(run.path)!r}))"  # noqa: E501
    take = [sys.executable, "-c", f"{other}\nwith r.locked(): pass"]
    with run.locked():
        with run.locked():
            pass
        assert "is in use by another process" in subprocess.run(take, capture_output=True, text=True).stderr
        with pytest.raises(RunError, match="in use by another process"), RunFolder(run.path).locked():
            pass
    assert subprocess.run(take, capture_output=True).returncode == 0


def test_a_run_that_another_process_only_looked_at_is_locked(home: Path, small: Make) -> None:
    run = new_run(small())
    held = threading.Event()

    def look() -> None:
        with RunFolder(run.path).locked():
            held.set()
            time.sleep(0.5)

    looking = threading.Thread(target=look)
    looking.start()
    held.wait()
    with pytest.raises(RunError, match="in use by another process"), RunFolder(run.path).locked(patience=0):
        pass
    with run.locked():
        looking.join()


def test_a_status_that_is_none_is_named(home: Path, small: Make) -> None:
    run = new_run(small())
    (run.path / "status.json").write_text('["running"]')
    with pytest.raises(RunError, match=r"status\.json cannot be trusted: it holds a list .* `shoal run --resume"):
        run.status()
    write_sealed(run.path / "status.json", {"state": "running", "round": "3"})
    with pytest.raises(RunError, match=r"status\.json is not the status of a run \(entry round is text.*`shoal run"):
        run.status()
    (run.path / "events.jsonl").write_bytes(b"\xff\n[1]\n" + line_of(Event("started")).encode() + b'{"event": "fail')
    assert run.events() == [Event("started")]


def test_records_are_written_again_as_they_were(home: Path, small: Make) -> None:
    run = straight(small(rounds=1))
    before = {name: (run.path / name).read_bytes() for name in ("lineage.json", "status.json", "events.jsonl")}
    run.set_lineage()
    run.add_to_status()
    (run.path / "events.jsonl").write_text("".join(map(line_of, run.whole_events())))
    assert {name: (run.path / name).read_bytes() for name in before} == before


def test_a_lineage_of_another_version_is_refused_in_a_sentence(home: Path, small: Make) -> None:
    run = new_run(small())
    lineage = record_to_json(run.lineage())
    for change, why in (({"hardware": None}, "hardware is null"), ({"branch": "x"}, "branch is unknown")):
        write_sealed(run.path / "lineage.json", {**lineage, **change})
        with pytest.raises(
            StoreError, match=rf"lineage\.json is not the lineage .*\(entry {why}.*`shoal run .*settings\.yaml`"
        ):
            run.lineage()
    write_sealed(run.path / "lineage.json", lineage)
    with pytest.raises(TypeError, match="branch"):
        run.set_lineage(branch="x")


def modes(folder: Path) -> tuple[set[str], set[str]]:
    """The modes of all folders and of all files below a folder, itself included."""
    paths = [folder, *folder.rglob("*")]
    return tuple(
        {oct(p.stat().st_mode & 0o777) for p in paths if p.is_dir() is is_folder} for is_folder in (True, False)
    )  # type: ignore


def test_what_clients_keep_and_send_is_the_users_alone(home: Path, small: Make) -> None:
    before = os.umask(0o022)
    all_modes: list[tuple[set[str], set[str]]] = []
    worker = Worker()
    one_at_a_time = threading.Lock()  # another client's temporary files would go while they are looked at

    def call(request: Any) -> Any:
        with one_at_a_time:
            answer = worker.handle(request)
            work = request.run / "work"
            if work.is_dir() and any(work.rglob("update-*")):
                tensors = {oct(p.stat().st_mode & 0o777) for p in work.rglob("*.safetensors")}
                all_modes.append((modes(work)[0], tensors))
        return answer

    try:
        run = straight(small(rounds=2, method={"name": "cfcl"}, local={"lr": 1e-3, "batch": 32, "epochs": None}), call)
    finally:
        os.umask(before)
    assert all_modes
    assert all(folders == {"0o700"} and files == {"0o600"} for folders, files in all_modes)
    assert any(run.memory.rglob("*.safetensors"))
    assert modes(run.memory) == ({"0o700"}, {"0o600"})
    assert run.status().state == FINISHED


def test_a_file_never_has_a_wider_mode_than_asked_for(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_atomic(tmp_path / "mine", b"x", mode=PRIVATE)
        write_atomic(tmp_path / "ours", b"x")
    finally:
        os.umask(before)
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("mine", "ours")] == ["0o600", "0o666"]
