"""`shoal serve`: Prefect server, work pool, deployments, a worker and the MLflow page, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import requests
from rich.console import Console

from data.errors import ShoalError
from flows import places
from flows.deployments import deploy_all
from flows.quiet import quiet

POOL = "shoal"
HOST = "127.0.0.1"


class ServeError(ShoalError):
    """A part of the service could not be started, or ended."""


def serve(port: int = 4200, mlflow_port: int = 5000, console: Console | None = None) -> None:
    """Start everything on 127.0.0.1 and wait.

    Raises:
        ServeError: a part did not start, or ended; names its log file.
    """
    out = console or Console()
    quiet()
    api = f"http://{HOST}:{port}/api"
    os.environ["PREFECT_API_URL"] = api
    logs = places.runs() / ".serve"
    logs.mkdir(parents=True, exist_ok=True)
    places.mlflow_store().mkdir(parents=True, exist_ok=True)
    children: dict[str, subprocess.Popen[bytes]] = {}
    try:
        children["Prefect server"] = start(
            logs / "prefect.log", "prefect", "server", "start", "--host", HOST, "--port", str(port)
        )
        wait_for(f"{api}/health", children["Prefect server"], logs / "prefect.log")
        run(logs / "deploy.log", "prefect", "work-pool", "create", POOL, "--type", "process", "--overwrite")
        deploy_all()
        children["worker"] = start(logs / "worker.log", "prefect", "worker", "start", "--pool", POOL)
        children["MLflow"] = start(
            logs / "mlflow.log",
            *("mlflow", "server", "--host", HOST, "--port", str(mlflow_port)),
            *("--backend-store-uri", f"sqlite:///{places.mlflow_store() / 'mlflow.db'}"),
        )
        wait_for(f"http://{HOST}:{mlflow_port}/health", children["MLflow"], logs / "mlflow.log")
        out.print(f"Prefect: http://{HOST}:{port}    MLflow: http://{HOST}:{mlflow_port}", highlight=False)
        out.print(f"in another shell: PREFECT_API_URL={api} shoal run    logs: {logs}", highlight=False, soft_wrap=True)
        out.print("Ctrl-C ends all of it")
        while True:
            for name, child in children.items():
                if child.poll() is not None:
                    raise ServeError(f"{name} ended with exit code {child.returncode}: see the logs in {logs}")
            time.sleep(1)
    finally:
        for child in reversed(children.values()):
            stop(child)


def program(*words: str) -> list[str]:
    """A command of the environment this process runs in."""
    return [str(Path(sys.executable).with_name(words[0])), *words[1:]]


def start(log: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a part in a process group of its own, so that Ctrl-C reaches it only through us."""
    with log.open("wb") as file:
        return subprocess.Popen(program(*words), stdout=file, stderr=subprocess.STDOUT, start_new_session=True)


def run(log: Path, *words: str) -> None:
    """Run a command to its end.

    Raises:
        ServeError: it failed; shows the end of what it said.
    """
    done = subprocess.run(program(*words), capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL)
    log.write_text(done.stdout + done.stderr)
    if done.returncode:
        raise ServeError(f"`{' '.join(words)}` failed: {(done.stdout + done.stderr).strip()[-800:]}")


def wait_for(url: str, child: subprocess.Popen[bytes], log: Path, seconds: float = 120) -> None:
    """Wait until an address answers.

    Raises:
        ServeError: the process ended, or nothing answered in time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise ServeError(f"{' '.join(map(str, child.args))} ended at once: see {log}")  # type: ignore[arg-type]
        try:
            if requests.get(url, timeout=2).ok:
                return
        except requests.RequestException:
            time.sleep(0.5)
    raise ServeError(f"{url} did not answer within {seconds:.0f} s: see {log}")


def stop(child: subprocess.Popen[bytes]) -> None:
    """End a part and whatever it started."""
    if child.poll() is None:
        try:
            os.killpg(child.pid, signal.SIGTERM)
            child.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(5)
