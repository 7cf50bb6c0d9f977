"""`shoal serve`: Prefect server, work pool, deployments, a worker and the MLflow page, until Ctrl-C."""

from __future__ import annotations

import contextlib
import getpass
import ipaddress
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
from engine.addresses import masked, without_user
from flows.deployments import CLIENT_AUTH, POOL, make_pool, read_project, register
from review.embedded_store import ready_store, store_uri
from tasks.prefect_environment import quiet

HOST = "127.0.0.1"
ANY = "0.0.0.0"
RETRIES = "PREFECT_CLIENT_MAX_RETRIES"
JOB_RETRIES = "3"
"""Of a job's question to the server, which takes 2, 4 and 8 seconds where it is lost; now and then it is only busy."""
SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
"""`user:password` that Prefect's server asks for."""
EXPERIMENT = "shoal"
"""The MLflow experiment that `tracking.experiment` names by default."""


class ServeError(ShoalError):
    """A part of the service could not be started, or ended."""


def serve(
    port: int = 4200,
    mlflow_port: int = 5000,
    console: Console | None = None,
    *,
    reset: bool = False,
    host: str = HOST,
) -> None:
    """Start everything and wait.

    Args:
        port: of Prefect's server.
        mlflow_port: of the MLflow page.
        console: where progress is told.
        reset: take schedules and parameters of deployments that the server knows from prefect.yaml again.
        host: address of this machine to listen on; on any but a loopback one others reach the pages.

    Raises:
        ServeError: a port is taken, or a part did not start, or ended; names its log file.
        DeploymentError: the working directory has no prefect.yaml that can be used.
    """
    out = console or Console()
    project = read_project(Path.cwd())
    tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
    own_page = not tracking.startswith("http")
    check_port(port, "--port", host)
    if own_page:
        check_port(mlflow_port, "--mlflow-port", host)
    # Before anything is started, for a folder that does not exist is said here.
    mirror = places.mirror()
    wanted = os.environ.get(RETRIES)
    quiet()
    # From this machine: on all of its addresses a server answers on 127.0.0.1 too.
    near = HOST if host == ANY else host
    api = f"http://{near}:{port}/api"
    page = f"http://{near}:{mlflow_port}" if own_page else without_user(tracking).rstrip("/")
    if auth := os.environ.get(SERVER_AUTH):
        os.environ.setdefault(CLIENT_AUTH, auth)  # of the worker, the deployments and their jobs
    jobs = {
        places.HOME_VARIABLE: str(places.home()),
        MIRROR_VARIABLE: str(mirror) if mirror else None,
        "MLFLOW_TRACKING_URI": tracking or None,
        places.PAGE_VARIABLE: page,
        RETRIES: wanted or JOB_RETRIES,
    }
    # A run can do without Prefect, and gives it up soon (`quiet`); what is done here cannot, and waits.
    if wanted is None:
        os.environ.pop(RETRIES, None)
    logs = places.runs() / ".serve"
    logs.mkdir(parents=True, exist_ok=True)
    if own_page and not tracking:
        ready_store(places.mlflow_store())
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
            logs / "prefect.log", "prefect", "server", "start", "--host", host, "--port", str(port)
        )
        if own_page:
            # Jobs of the GenAI side are not Shoal's; two workers answer one user, and start faster than four.
            os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
            # As a variable: what stands on a command line everybody on this machine can read.
            children["MLflow"] = start(
                logs / "mlflow.log",
                *("mlflow", "server", "--host", host, "--port", str(mlflow_port), "--workers", "2"),
                env={"MLFLOW_BACKEND_STORE_URI": tracking or store_uri(places.mlflow_store())},
            )
        wait_for(f"{api}/health", children["Prefect server"], logs / "prefect.log")
        tell(f"Prefect's server is up: http://{near}:{port}")
        # Prefect keeps a pool's variables and shows them; a password reaches jobs from the worker's environment alone.
        secret = masked(tracking) != tracking
        make_pool(api, {**jobs, "MLFLOW_TRACKING_URI": None} if secret else jobs, prefect)
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
        experiment = experiment_id(page if own_page else tracking.rstrip("/"))
        runs_page = f"{page}/#/experiments/{experiment}/runs?workflowType=machine_learning"
        # Last: with the MLflow store made and the experiment there, first runs have nothing to collide on.
        children["worker"] = start(
            logs / "worker.log", "prefect", "worker", "start", "--pool", POOL, env={**jobs, RETRIES: wanted}
        )
        tell(f"the worker is started: it runs deployments in {Path.cwd()} and writes to {places.home()}")
        tell(f"Prefect: http://{near}:{port}/deployments")
        tell(f"MLflow:  {runs_page}")
        tell(f"in another shell: export PREFECT_API_URL={api}")
        for line in what_is_open(host, port, mlflow_port if own_page else None):
            tell(line)
        tell("Ctrl-C ends all of it")
        while True:
            for name, child in children.items():
                if child.poll() is not None:
                    raise ServeError(f"{name} ended with exit code {child.returncode}: see the logs in {logs}")
            time.sleep(1)
    finally:
        for child in reversed(children.values()):
            stop(child)


def what_is_open(host: str, port: int, mlflow_port: int | None) -> list[str]:
    """What others can do where the service listens on another address than a loopback one; nothing where it does not.

    Args:
        host: the address.
        port: of Prefect's server.
        mlflow_port: of the MLflow page; None where it is not served here.
    """
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return []
    guarded = bool(os.environ.get(SERVER_AUTH))
    who = "whoever has the password" if guarded else "WITHOUT A PASSWORD: whoever reaches it"
    lines = [f"open on {host}, port {port} (Prefect): {who} runs any code here as {getpass.getuser()}"]
    if not guarded:
        lines.append(f"  set {SERVER_AUTH}=user:password to ask for one")
    if mlflow_port is not None:
        lines.append(
            f"open on {host}, port {mlflow_port} (MLflow): WITHOUT A PASSWORD: whoever reaches it reads, changes and "
            "deletes runs and models"
        )
    lines.append('  nothing is encrypted: see "On other addresses" in docs/operations.md for a proxy in front')
    return lines


def check_port(port: int, option: str, host: str = HOST) -> None:
    """Say in time that a port is taken.

    Raises:
        ServeError: something listens there, or it cannot be listened on.
    """
    with socket.socket() as probe:
        # As servers do: a port whose last connections are closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ServeError(
                f"port {port} of {host} cannot be used ({error.strerror}): end what listens there (another "
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
        if urlsplit(page).scheme == "http" and not os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http"):
            # As review.tracking makes it: artifacts lie beside the store.
            about["artifact_location"] = (places.mlflow_store() / "artifacts" / EXPERIMENT).as_uri()
        made = requests.post(f"{url}/create", json=about, timeout=30)
        made.raise_for_status()
        return str(made.json()["experiment_id"])
    except (requests.RequestException, KeyError) as error:
        raise ServeError(f"MLflow at {masked(page)} does not tell its experiments ({masked(str(error))})") from None


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
