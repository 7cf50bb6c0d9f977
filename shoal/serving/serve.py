"""`shoal serve`: Prefect server, work pool, deployments, a worker and the MLflow page, until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from rich.console import Console

from shoal.core.durable import private_folder
from shoal.core.errors import ShoalError
from shoal.data.sets.sources import MIRROR_VARIABLE
from shoal.engine.settings import places
from shoal.engine.settings.addresses import masked, without_user
from shoal.engine.sites.server import port_fault
from shoal.engine.store.codec import write_atomic
from shoal.engine.store.user_name import user_name
from shoal.review.mlflow_log.embedded_store import ready_store, store_uri
from shoal.review.mlflow_log.experiments import experiment_of, view_page
from shoal.serving.data_events import CHECK_SECONDS, FolderWatch
from shoal.serving.deployments import POOL, WORKER, end_left_over, make_pool, read_project, register
from shoal.serving.pages.guard import AUTH_VARIABLE, HOSTS_VARIABLE, LOGIN_PATH, further_hosts
from shoal.serving.processes import (
    Parts,
    ServeError,
    check,
    ended_with_the_block,
    module,
    program,
    run,
    start,
    wait_for,
)
from shoal.tasks.prefect.environment import set_prefect_defaults
from shoal.tasks.prefect.login import CLIENT_AUTH, SERVER_AUTH, is_loopback, own_login

HOST = "127.0.0.1"
ALL_ADDRESSES = "0.0.0.0"
RETRIES = "PREFECT_CLIENT_MAX_RETRIES"
JOB_RETRIES = "3"
"""Retries of a job's request to Prefect's server, after 2, 4 and 8 seconds: the server may only be busy."""
EXPERIMENT = "shoal"
"""The MLflow experiment that `tracking.experiment` names by default."""
LINKS = "links.txt"
"""The file, beside the logs, with the links that log a browser in; only the user can read it."""


@dataclass(frozen=True)
class Service:
    """The addresses and the login of the service.

    Args:
        host: address to listen on.
        port: port of Prefect's server.
        mlflow_port: port of the MLflow page; None where another server has the runs.
        tracking: MLFLOW_TRACKING_URI; empty where it is not set.
        login: `user:password` of both pages.
    """

    host: str
    port: int
    mlflow_port: int | None
    tracking: str
    login: str

    @property
    def near(self) -> str:
        """The host's name on this machine: a server that listens on all addresses answers on 127.0.0.1 too."""
        return HOST if self.host == ALL_ADDRESSES else self.host

    @property
    def prefect(self) -> str:
        """Address of Prefect's page."""
        return f"http://{self.near}:{self.port}"

    @property
    def api(self) -> str:
        """Address of Prefect's API."""
        return f"{self.prefect}/api"

    @property
    def mlflow(self) -> str:
        """Address of the MLflow page."""
        if self.mlflow_port is None:
            return without_user(self.tracking).rstrip("/")
        return f"http://{self.near}:{self.mlflow_port}"

    def names(self, port: int) -> list[str]:
        """Return the names under which a page may be requested, with its port, beside numeric addresses."""
        named = {"localhost", self.near}
        if not is_loopback(self.host):
            named |= {socket.gethostname(), socket.getfqdn()}
        return [f"{name}:{port}" for name in sorted(named)]

    def links(self, runs_page: str) -> dict[str, str]:
        """Return the link of each page that logs a browser in."""
        login = quote(self.login, safe=":")
        # What follows # reaches no server, and no log.
        links = {"Prefect": f"{self.prefect}{LOGIN_PATH}#{login}"}
        if self.mlflow_port is not None:
            scheme, _, place = self.mlflow.partition("://")
            links["MLflow"] = f"{scheme}://{login}@{place}{LOGIN_PATH}{runs_page}"
        return links


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
        console: shows progress.
        reset: take schedules and parameters of known deployments from prefect.yaml again.
        host: address of this machine to listen on; on any but a loopback address other machines reach the pages.

    Raises:
        ServeError: a port is taken, or a part did not start, or ended; names its log file.
        DeploymentError: the working directory has no valid prefect.yaml.
        PrivateFileError: other users can read or write the file with the login. LoginError: it cannot be used.
    """
    out = console or Console()
    project = read_project(Path.cwd())
    retries = os.environ.get(RETRIES)
    service = plan_service(host, port, mlflow_port)
    # Before anything is started: a folder that does not exist is refused here.
    jobs = job_variables(service, places.mirror(), retries)
    private_folder(places.prefect_home())
    set_environment(service, retries)
    logs = places.runs() / ".serve"
    places.runs().mkdir(parents=True, exist_ok=True)
    private_folder(logs)
    own_page = service.mlflow_port is not None
    if own_page and not service.tracking:
        ready_store(places.mlflow_store())

    def tell(line: str) -> None:
        out.print(line, highlight=False, soft_wrap=True, markup=False)

    tell(f"starting Prefect's server{' and MLflow' if own_page else ''} for {places.home()} (logs: {logs})")
    with ended_with_the_block() as parts:
        start_servers(service, parts, logs)
        register_deployments(service, parts, logs, project, jobs, tell, reset=reset)
        if own_page:
            wait_for(f"{service.mlflow}/health", parts["MLflow"], logs / "mlflow.log")
            tell(f"MLflow is up: {service.mlflow}")
        experiment = experiment_id(service)
        # Last: once the MLflow store and the experiment exist, two first runs cannot both create them.
        worker = program("prefect", "worker", "start", "--pool", POOL, "--name", WORKER)
        parts["worker"] = start(logs / "worker.log", *worker, env={**jobs, RETRIES: retries})
        tell(f"the worker is started: it runs deployments in {Path.cwd()} and writes to {places.home()}")
        for line in address_lines(service, experiment, logs / LINKS, terminal=out.is_terminal):
            tell(line)
        for line in exposure_warnings(host, port, service.mlflow_port):
            tell(line)
        tell("Ctrl-C ends all of it")
        wait(parts, logs, FolderWatch(service.api, logs / "watched.json", tell))


def wait(parts: Parts, logs: Path, watch: FolderWatch) -> NoReturn:
    """Announce new files in watched folders, until a part ends or Ctrl-C.

    Raises:
        ServeError: a part ended; names its log file.
    """
    while True:
        # The server may be busy, or a disk away: the next look comes soon.
        with contextlib.suppress(ShoalError, OSError):
            watch.check()
        for _ in range(CHECK_SECONDS):
            check(parts, logs)
            time.sleep(1)


def plan_service(host: str, port: int, mlflow_port: int) -> Service:
    """Return the addresses of the service, after a check that they are free.

    Raises:
        ServeError: the host is no address of this machine, or a port is taken. PrivateFileError, LoginError: the login
            cannot be used.
    """
    tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
    own_page = not tracking.startswith("http")
    if fault := port_fault(host, 0):
        raise ServeError(f"--host {host} cannot be listened on ({fault}): give an IPv4 address of this machine")
    check_port(port, "--port", host)
    if own_page:
        check_port(mlflow_port, "--mlflow-port", host)
    return Service(host, port, mlflow_port if own_page else None, tracking, own_login())


def job_variables(service: Service, mirror: Path | None, retries: str | None) -> dict[str, str | None]:
    """Return the variables of every job of the work pool.

    Args:
        service: that the jobs use.
        mirror: of raw data sets.
        retries: retries of a request to Prefect, where the user has set them.
    """
    return {
        places.HOME_VARIABLE: str(places.home()),
        MIRROR_VARIABLE: str(mirror) if mirror else None,
        "MLFLOW_TRACKING_URI": service.tracking or None,
        places.PAGE_VARIABLE: service.mlflow,
        RETRIES: retries or JOB_RETRIES,
    }


def set_environment(service: Service, retries: str | None) -> None:
    """Set the environment of Prefect's clients that this process starts: the worker, `prefect deploy`, and the jobs."""
    set_prefect_defaults()
    # A run can do without Prefect and soon gives it up (`set_prefect_defaults`); this service cannot, and waits.
    if retries is None:
        os.environ.pop(RETRIES, None)
    os.environ["PREFECT_API_URL"] = service.api
    os.environ[CLIENT_AUTH] = service.login
    # So that a run that is started on the page begins within seconds; the default is 10 s.
    os.environ.setdefault("PREFECT_WORKER_QUERY_SECONDS", "2")


def register_deployments(
    service: Service,
    parts: Parts,
    logs: Path,
    project: dict[str, Any],
    jobs: dict[str, str | None],
    tell: Callable[[str], None],
    *,
    reset: bool,
) -> None:
    """Wait for Prefect's server, and register the work pool and the deployments; `tell` shows progress."""

    def prefect(*words: str) -> None:
        run(logs / "deploy.log", "prefect", *words)

    wait_for(f"{service.api}/health", parts["Prefect server"], logs / "prefect.log")
    tell(f"Prefect's server is up: {service.prefect}")
    # Prefect stores a pool's variables and shows them; a password only reaches jobs through the worker's environment.
    secret = masked(service.tracking) != service.tracking
    make_pool(service.api, {**jobs, "MLFLOW_TRACKING_URI": None} if secret else jobs, prefect)
    for name in end_left_over(service.api):
        tell(f"{name}: a run had ended together with the service; the next one with its settings goes on with it")
    kept = register(service.api, project, logs, prefect, reset=reset)
    names = ", ".join(entry["name"] for entry in project["deployments"])
    tell(f"deployments are registered: {names}")
    if kept:
        tell("known ones keep the schedules and parameters of Prefect's page; --reset-schedules takes prefect.yaml's")


def start_servers(service: Service, parts: Parts, logs: Path) -> None:
    """Start Prefect's server and, unless another server has the runs, MLflow's page, both behind the guard."""
    address = ("--host", service.host, "--port", str(service.port))
    server = module("shoal.serving.pages.prefect_page", *address)
    parts["Prefect server"] = start(logs / "prefect.log", *server, env=prefect_variables(service))
    if service.mlflow_port is not None:
        # Two workers are enough for one user, and start faster than four.
        address = ("--host", service.host, "--port", str(service.mlflow_port))
        server = module("shoal.serving.pages.mlflow_page", "server", *address, "--workers", "2")
        parts["MLflow"] = start(logs / "mlflow.log", *server, env=mlflow_variables(service))


def prefect_variables(service: Service) -> dict[str, str | None]:
    """Return the environment variables of Prefect's server; everybody on this machine could read a command line.

    Variables of the user stay, except the origins, which the guard knows better.
    """
    names = service.names(service.port)
    return {
        SERVER_AUTH: service.login,
        HOSTS_VARIABLE: ",".join([*names, *further_hosts()]),
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{name}" for name in names),
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": os.environ.get("PREFECT_SERVER_CSRF_PROTECTION_ENABLED", "true"),
    }


def mlflow_variables(service: Service) -> dict[str, str | None]:
    """Return the environment variables of MLflow's page, likewise."""
    names = service.names(service.mlflow_port or 0)
    near = is_loopback(service.host)
    return {
        AUTH_VARIABLE: service.login,
        HOSTS_VARIABLE: ",".join([*names, *further_hosts()]),
        "MLFLOW_BACKEND_STORE_URI": service.tracking or store_uri(places.mlflow_store()),
        # The page sends no report of its use to MLflow's makers, and shows no note about that.
        "MLFLOW_DISABLE_TELEMETRY": os.environ.get("MLFLOW_DISABLE_TELEMETRY", "true"),
        # Shoal does not use the jobs of MLflow's GenAI side.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": os.environ.get("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false"),
        # MLflow has no word for "any numeric address": where other machines are let in, only the guard checks names.
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(names) if near and not further_hosts() else "*",
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{name}" for name in names),
        "MLFLOW_SERVER_X_FRAME_OPTIONS": "SAMEORIGIN",
    }


def address_lines(service: Service, experiment: str, links: Path, *, terminal: bool) -> list[str]:
    """Return lines that say where the pages are, how to log a browser in, and what other shells need.

    The links with the password are only shown on a terminal: other people may read a file or a journal.

    Args:
        service: that is up.
        experiment: id of the MLflow experiment of the runs.
        links: the file to write the links to.
        terminal: whether the lines go to a terminal.
    """
    runs_page = f"/#{view_page(experiment)}"
    by_page = service.links(runs_page.removeprefix("/"))
    write_atomic(links, "".join(f"{name}: {link}\n" for name, link in by_page.items()).encode(), mode=0o600)
    lines = [f"Prefect: {service.prefect}/deployments", f"MLflow:  {service.mlflow}{runs_page}"]
    if terminal:
        lines.append(f"both ask for a password; these links log a browser in (also in {links}):")
        lines += [f"  {link}" for link in by_page.values()]
    else:
        lines.append(f"both ask for a password; links that log a browser in are in {links}, which only you can read")
    home = shlex.quote(str(places.prefect_home()))
    login = f"$(cat {shlex.quote(str(places.login()))})"
    if os.environ.get(SERVER_AUTH):
        login = f"${SERVER_AUTH}"
    return [
        *lines,
        f'in another shell: export PREFECT_API_URL={service.api} PREFECT_HOME={home} {CLIENT_AUTH}="{login}"',
    ]


def exposure_warnings(host: str, port: int, mlflow_port: int | None) -> list[str]:
    """Return warnings on what others can do where the service listens on an address other than a loopback one.

    Args:
        host: the address.
        port: port of Prefect's server.
        mlflow_port: port of the MLflow page; None where it is not served here.
    """
    if is_loopback(host):
        return []
    open_ports = f"port {port} (Prefect)"
    if mlflow_port is not None:
        open_ports += f" and {mlflow_port} (MLflow)"
    return [
        f"open on {host}, {open_ports}: everybody with the password can run any code here as {user_name()}; nothing is "
        'encrypted, not even the password: see "On other addresses" in docs/prefect.md for a proxy'
    ]


def check_port(port: int, option: str, host: str) -> None:
    """Refuse a port that is taken, before anything is started.

    Raises:
        ServeError: something listens on it, or it cannot be listened on.
    """
    if fault := port_fault(host, port):
        raise ServeError(
            f"port {port} of {host} cannot be used ({fault}): stop the program that uses it (another `shoal serve`, or "
            f"servers of one that was killed?), or choose another port with {option}"
        )


def experiment_id(service: Service) -> str:
    """Return the id of the experiment that runs are logged to, with its view; create both in a new store.

    Raises:
        ServeError: MLflow did not answer.
    """
    # Only now: importing these sets variables that MLflow's server must not have.
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    uri = service.tracking or store_uri(places.mlflow_store())
    try:
        return experiment_of(MlflowClient(uri), EXPERIMENT)
    except MlflowException as error:
        raise ServeError(
            f"MLflow at {masked(uri)} does not list its experiments ({masked(str(error))}): see its log"
        ) from None
