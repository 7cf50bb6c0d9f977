"""`shoal serve`: Prefect server, work pool, deployments, a worker and the MLflow page, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import requests
from rich.console import Console

from core.errors import ShoalError
from data.sources import MIRROR_VARIABLE
from engine import places
from flows.deployments import POOL, make_pool, read_project, register
from tasks.prefect_environment import quiet

HOST = "127.0.0.1"
RETRIES = "PREFECT_CLIENT_MAX_RETRIES"
EXPERIMENT = "shoal"
"""The MLflow experiment that `tracking.experiment` names by default."""


class ServeError(ShoalError):
    """A part of the service could not be started, or ended."""


def serve(port: int = 4200, mlflow_port: int = 5000, console: Console | None = None, *, reset: bool = False) -> None:
    """Start everything on 127.0.0.1 and wait.

    Args:
        port: of Prefect's server.
        mlflow_port: of the MLflow page.
        console: where progress is told.
        reset: take schedules and parameters of deployments that the server knows from prefect.yaml again.

    Raises:
        ServeError: a port is taken, or a part did not start, or ended; names its log file.
        DeploymentError: the working directory has no prefect.yaml that can be used.
    """
    out = console or Console()
    project = read_project(Path.cwd())
    own_page = not os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http")
    check_port(port, "--port")
    if own_page:
        check_port(mlflow_port, "--mlflow-port")
    # Before anything is started, for a folder that does not exist is said here.
    mirror = places.mirror()
    patience = {RETRIES: os.environ.get(RETRIES)}
    quiet()
    api = f"http://{HOST}:{port}/api"
    page = f"http://{HOST}:{mlflow_port}" if own_page else os.environ["MLFLOW_TRACKING_URI"].rstrip("/")
    jobs = {
        places.HOME_VARIABLE: str(places.home()),
        MIRROR_VARIABLE: str(mirror) if mirror else None,
        "MLFLOW_TRACKING_URI": os.environ.get("MLFLOW_TRACKING_URI") or None,
        places.PAGE_VARIABLE: page,
        RETRIES: os.environ[RETRIES],
    }
    logs = places.runs() / ".serve"
    logs.mkdir(parents=True, exist_ok=True)
    places.mlflow_store().mkdir(parents=True, exist_ok=True)
    os.environ["PREFECT_API_URL"] = api
    # A run asked for on the page begins within seconds: the worker would ask every 10 s only.
    os.environ.setdefault("PREFECT_WORKER_QUERY_SECONDS", "2")

    def tell(line: str) -> None:
        out.print(line, highlight=False, soft_wrap=True)

    def prefect(*words: str) -> None:
        run(logs / "deploy.log", "prefect", *words)

    children: dict[str, subprocess.Popen[bytes]] = {}
    tell(f"starting Prefect's server{' and MLflow' if own_page else ''} for {places.home()} (logs: {logs})")
    try:
        children["Prefect server"] = start(
            logs / "prefect.log", "prefect", "server", "start", "--host", HOST, "--port", str(port)
        )
        if own_page:
            # Jobs of the GenAI side are not Shoal's; two workers answer one user, and start faster than four.
            os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
            store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{places.mlflow_store() / 'mlflow.db'}"
            children["MLflow"] = start(
                logs / "mlflow.log",
                *("mlflow", "server", "--host", HOST, "--port", str(mlflow_port), "--workers", "2"),
                *("--backend-store-uri", store),
            )
        wait_for(f"{api}/health", children["Prefect server"], logs / "prefect.log")
        tell(f"Prefect's server is up: http://{HOST}:{port}")
        make_pool(api, jobs, prefect)
        kept = register(api, project, logs, prefect, reset=reset)
        names = ", ".join(entry["name"] for entry in project["deployments"])
        tell(f"deployments are registered: {names}")
        for name in kept:
            tell(
                f"{name}: schedules or parameters differ from prefect.yaml and are kept as they are on Prefect's "
                "page; `shoal serve --reset-schedules` takes those of prefect.yaml"
            )
        if own_page:
            wait_for(f"{page}/health", children["MLflow"], logs / "mlflow.log")
            tell(f"MLflow is up: {page}")
        runs_page = f"{page}/#/experiments/{experiment_id(page)}/runs?workflowType=machine_learning"
        # Last: with the MLflow store made and the experiment there, first runs have nothing to collide on.
        # A run can do without Prefect, and gives it up soon (`quiet`); the worker has nothing else to do, and waits.
        children["worker"] = start(
            logs / "worker.log", "prefect", "worker", "start", "--pool", POOL, env={**jobs, **patience}
        )
        tell(f"the worker is started: it runs deployments in {Path.cwd()} and writes to {places.home()}")
        tell(f"Prefect: http://{HOST}:{port}/deployments")
        tell(f"MLflow:  {runs_page}")
        tell(f"in another shell: export PREFECT_API_URL={api}")
        tell("Ctrl-C ends all of it")
        while True:
            for name, child in children.items():
                if child.poll() is not None:
                    raise ServeError(f"{name} ended with exit code {child.returncode}: see the logs in {logs}")
            time.sleep(1)
    finally:
        for child in reversed(children.values()):
            stop(child)


def check_port(port: int, option: str) -> None:
    """Say in time that a port is taken.

    Raises:
        ServeError: something listens there, or it cannot be listened on.
    """
    with socket.socket() as probe:
        # As servers do: a port whose last connections are closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ServeError(
                f"port {port} of {HOST} cannot be used ({error.strerror}): end what listens there (another "
                f"`shoal serve`?), or choose another with {option}"
            ) from error


def experiment_id(page: str) -> str:
    """The id of the experiment that runs are logged to; it is made where the store is new.

    Raises:
        ServeError: MLflow did not answer.
    """
    url = f"{page}/api/2.0/mlflow/experiments"
    try:
        found = requests.get(f"{url}/get-by-name", params={"experiment_name": EXPERIMENT}, timeout=30)
        if found.ok:
            return str(found.json()["experiment"]["experiment_id"])
        about = {"name": EXPERIMENT}
        if urlsplit(page).hostname == HOST:
            # As review.tracking makes it: artifacts lie beside the store.
            about["artifact_location"] = (places.mlflow_store() / "artifacts" / EXPERIMENT).as_uri()
        made = requests.post(f"{url}/create", json=about, timeout=30)
        made.raise_for_status()
        return str(made.json()["experiment_id"])
    except (requests.RequestException, KeyError) as error:
        raise ServeError(f"MLflow at {page} does not tell its experiments ({error})") from error


def program(*words: str) -> list[str]:
    """A command of the environment this process runs in."""
    return [str(Path(sys.executable).with_name(words[0])), *words[1:]]


def start(log: Path, *words: str, env: dict[str, str | None] | None = None) -> subprocess.Popen[bytes]:
    """Start a part in a process group of its own, so that Ctrl-C reaches it only through us.

    Args:
        log: takes what it prints.
        words: the command.
        env: environment variables to set, or to take away where None.
    """
    merged = {**os.environ, **(env or {})}
    with log.open("wb") as file:
        return subprocess.Popen(
            program(*words),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={name: value for name, value in merged.items() if value is not None},
        )


def run(log: Path, *words: str) -> None:
    """Run a command to its end.

    Raises:
        ServeError: it failed; shows the end of what it said.
    """
    done = subprocess.run(program(*words), capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL)
    with log.open("a") as file:
        file.write(done.stdout + done.stderr)
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
            time.sleep(0.3)
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
