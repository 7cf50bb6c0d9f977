"""A real `shoal serve` in a clone, for tests: as a user has it, and with a browser's and a thief's means beside it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
import yaml

from tests.flows.test_prefect import free_port

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
OURS = ("SHOAL_", "PREFECT_", "MLFLOW_", "VIRTUAL_ENV")
PATIENCE = 420
"""Seconds for what takes ten on an idle machine: Prefect's SQLite server at times stands still for a minute or two."""
TINY: dict[str, Any] = {
    "method": {"name": "fedpnp"},
    "data": {"name": "digits", "limit": 240},
    "partition": {"kind": "iid", "clients": 3},
    "model": {"encoder": "tiny-conv"},
    "local": {"epochs": 1, "batch": 32},
    "workers": {"device": "cpu", "precision": "fp32", "slots": 1},
    "tracking": {"model": False},
}


def eventually(condition: Callable[[], Any], what: str, every: float = 0.5) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(every)
    raise AssertionError(f"{what}: not within {PATIENCE} s")


def csrf_headers(session: requests.Session, url: str) -> dict[str, str]:
    """The headers by which Prefect's server recognises requests of its own page."""
    root, _, _ = url.partition("/api/")
    client = str(uuid.uuid4())
    answer = session.get(f"{root}/api/csrf-token", params={"client": client}, timeout=30)
    if answer.status_code in (requests.codes.unprocessable_entity, requests.codes.not_found):
        return {}
    answer.raise_for_status()
    return {"Prefect-Csrf-Token": answer.json()["token"], "Prefect-Csrf-Client": client}


def clone(folder: Path) -> Path:
    """What a clone of this working tree would be, as one commit."""
    git = ("git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z")
    for name in subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink()):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def commit(folder: Path) -> str:
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "all")):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


class Served:
    """`shoal serve` in a clone."""

    def __init__(self, folder: Path) -> None:
        self.folder = clone(folder / "clone")
        path = self.folder / "prefect.yaml"
        project = yaml.safe_load(path.read_text())
        (on_demand,) = (each for each in project["deployments"] if each["name"] == "on-demand")
        every_minute = {"name": "every-minute", "parameters": {"settings": {**TINY, "rounds": 15}}}
        project["deployments"].append({**on_demand, **every_minute, "schedules": [{"cron": "* * * * *"}]})
        path.write_text(yaml.safe_dump(project))
        self.commit = commit(self.folder)
        self.port, self.mlflow_port = free_port(), free_port()
        self.api, self.page = f"http://127.0.0.1:{self.port}/api", f"http://127.0.0.1:{self.mlflow_port}"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        self.env |= {"HOME": str(folder), "PATH": "/usr/local/bin:/usr/bin:/bin", "DO_NOT_TRACK": "1"}
        self.start()

    def start(self) -> None:
        """Start `shoal serve`, for the first time or again."""
        ports = ("--port", str(self.port), "--mlflow-port", str(self.mlflow_port))
        self.process = subprocess.Popen(
            [BIN / "shoal", "serve", *ports],
            cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def started(self) -> bool:
        assert self.process.poll() is None, "".join(self.lines)
        return any("Ctrl-C" in line for line in self.lines)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(PATIENCE)

    def prefect(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Prefect's command line in another shell."""
        home = {"PREFECT_HOME": str(self.folder / ".prefect"), "PREFECT_API_AUTH_STRING": ":".join(self.login)}
        env = {**self.env, "PREFECT_API_URL": self.api, "COLUMNS": "300", **home}
        return subprocess.run(
            [BIN / "prefect", *words], cwd=self.folder.parent, env=env, capture_output=True, text=True, timeout=PATIENCE
        )

    @property
    def login(self) -> tuple[str, str]:
        """User and password of both pages."""
        user, _, password = (self.folder / ".prefect" / "login").read_text().strip().partition(":")
        return user, password

    def session(self) -> requests.Session:
        """As the user is, logged in."""
        session = requests.Session()
        session.auth = self.login
        return session

    def find(self, what: str, **body: Any) -> list[dict[str, Any]]:
        return self.ask("POST", f"{what}/filter", body).json()

    def ask(self, how: str, path: str, body: dict[str, Any]) -> requests.Response:
        """A question to the API, again where the server says that its database is busy."""

        url = f"{self.api}/{path}"

        def answer() -> requests.Response | None:
            with self.session() as session:
                try:
                    headers = csrf_headers(session, url)
                except requests.HTTPError:
                    return None
                found = session.request(how, url, json=body, headers=headers, timeout=PATIENCE)
            return None if found.status_code == 503 else found

        found = eventually(answer, f"{how} {path}")
        found.raise_for_status()
        return found

    def deployment(self, name: str) -> dict[str, Any]:
        return self.find("deployments", deployments={"name": {"any_": [name]}})[0]

    def pause(self, name: str) -> None:
        """As Prefect's page does it."""
        about = self.deployment(name)
        for schedule in about["schedules"]:
            self.ask("PATCH", f"deployments/{about['id']}/schedules/{schedule['id']}", {"active": False})

    def under_way(self) -> list[str]:
        """Names of the pipeline's flow runs that are begun and not ended."""
        found = self.find("flow_runs", flows={"name": {"any_": ["pipeline"]}})
        return [each["name"] for each in found if each["state_type"] in ("PENDING", "RUNNING")]

    def runs(self, rounds: int) -> list[Path]:
        """Folders of runs with so many rounds."""
        found = sorted(self.folder.glob("runs/*/settings.yaml"))
        return [path.parent for path in found if yaml.safe_load(path.read_text())["rounds"] == rounds]
