"""The servers of a team, all of them real and set up by deploy/: PostgreSQL, an object store, MLflow and Prefect."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.sources import ROOT

HOST = "127.0.0.1"
PATIENCE = 240
ADMINISTRATOR = "administrator-word"
"""The password of PostgreSQL's own user."""
SECRETS = {
    "MLFLOW_DATABASE_PASSWORD": "mlflow-database-word",
    "PREFECT_DATABASE_PASSWORD": "prefect-database-word",
    "AWS_ACCESS_KEY_ID": "object-store-key",
    "AWS_SECRET_ACCESS_KEY": "object-store-word",
    "PREFECT_AUTH": "team:prefect-page-word",
    "MLFLOW_AUTH": "shoal:tracking-address-word",
}
"""What a team would have in deploy/.env."""


def postgres_programs() -> Path:
    """The folder of PostgreSQL's programs; where they are not installed the test fails, and says what to install."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders or not (folders[-1] / "initdb").exists():
        pytest.fail("this slow test needs PostgreSQL's initdb and postgres: apt-get install postgresql")
    return folders[-1]


def eventually(condition: Callable[[], Any], what: str, every: float = 0.3) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(every)
    raise AssertionError(f"{what}: not within {PATIENCE} s")


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.RequestException:
        return False


def plain_environment() -> dict[str, str]:
    """This process's environment without what would lead a server elsewhere."""
    ours = ("SHOAL_", "PREFECT_", "MLFLOW_", "AWS_", "PG", "POSTGRES")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {"DO_NOT_TRACK": "1"}


class Program:
    """A server in a process group of its own, its output in a file.

    Args:
        log: takes what it prints.
        words: the command.
        env: environment variables beside the plain ones.
        url: answers once it is up; None: nobody knows.
        wait: until it answers.
        options: further ones of Popen.
    """

    def __init__(
        self, log: Path, words: list[Any], env: Mapping[str, str], url: str | None, *, wait: bool = True, **options: Any
    ) -> None:
        self.log, self.url = log, url
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                words, env={**plain_environment(), **env}, stdout=file, stderr=file, start_new_session=True, **options
            )
        if url is not None and wait:
            self.wait()

    def wait(self) -> None:
        """Until it answers."""
        eventually(self.up, f"{self.url} (see {self.log})")

    def up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return answers(str(self.url))

    def kill(self, how: int = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, how)
        self.process.wait()


@contextmanager
def postgres(folder: Path, programs: Path, port: int) -> Iterator[None]:
    """A new PostgreSQL with the team's two databases, of a user that is not root, with passwords for everybody."""
    who = pwd.getpwnam("postgres" if any(each.pw_name == "postgres" for each in pwd.getpwall()) else "nobody")
    as_user: dict[str, Any] = {} if os.geteuid() else {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
    # Not below pytest's own folder, which other users cannot enter.
    with tempfile.TemporaryDirectory(prefix="shoal-postgres-") as place:
        data, word = Path(place) / "data", Path(place) / "word"
        data.mkdir()
        word.write_text(ADMINISTRATOR)
        if as_user:
            for path in (Path(place), data, word):
                os.chown(path, who.pw_uid, who.pw_gid)
        words = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "scram-sha-256", "--pwfile", word, "-N"]
        subprocess.run(words, check=True, capture_output=True, cwd=place, **as_user)
        options = ["-c", "fsync=off", "-c", f"listen_addresses={HOST}", "-c", "log_connections=on"]
        words = [programs / "postgres", "-D", data, "-p", str(port), "-k", place, *options]
        server = Program(folder / "postgres.log", words, {}, None, cwd=place, **as_user)
        try:
            ready = [programs / "pg_isready", "-h", HOST, "-p", str(port)]
            eventually(lambda: subprocess.run(ready, capture_output=True).returncode == 0, "PostgreSQL")
            where = {"PGHOST": HOST, "PGPORT": str(port), "PGPASSWORD": ADMINISTRATOR}
            env = {**plain_environment(), **SECRETS, **where, "PATH": f"{programs}:{os.environ['PATH']}"}
            script = ROOT / "deploy" / "create-databases.sh"
            made = subprocess.run([script], env=env, capture_output=True, text=True)
            assert made.returncode == 0, made.stderr
            yield
        finally:
            server.kill(signal.SIGINT)


class Team:
    """All servers of a team.

    Attributes:
        mlflow, prefect: addresses.
        folder: of the logs.
    """

    def __init__(self, folder: Path, free_port: Callable[[], int], stack: ExitStack) -> None:
        programs = postgres_programs()
        self.folder, self._stack = folder, stack
        self.database, objects = free_port(), free_port()
        self._mlflow_port, self._prefect_port = free_port(), free_port()
        self.mlflow = f"http://{HOST}:{self._mlflow_port}"
        self.prefect = f"http://{HOST}:{self._prefect_port}/api"
        self.objects = f"http://{HOST}:{objects}"
        stack.enter_context(postgres(folder, programs, self.database))
        words = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(objects)]
        store = Program(folder / "objects.log", words, {}, f"{self.objects}/moto-api/")
        stack.callback(store.kill)
        self._store = {
            **{name: SECRETS[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")},
            "AWS_DEFAULT_REGION": "us-east-1",
            "MLFLOW_S3_ENDPOINT_URL": self.objects,
            "MLFLOW_ARTIFACTS_DESTINATION": "s3://shoal/mlflow",
        }
        for _ in range(2):  # the second time it is there
            bucket = [sys.executable, ROOT / "deploy" / "make_bucket.py"]
            subprocess.run(bucket, env={**plain_environment(), **self._store}, check=True, capture_output=True)
        self.mlflow_server = self.start_mlflow(wait=False)
        stack.callback(lambda: self.mlflow_server.kill())
        words = [
            sys.executable,
            "-m",
            "shoal.serving.pages.prefect_page",
            "--host",
            HOST,
            "--port",
            str(self._prefect_port),
        ]
        env = {
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://prefect@{HOST}:{self.database}/prefect",
            "PGPASSWORD": SECRETS["PREFECT_DATABASE_PASSWORD"],
            "PREFECT_SERVER_API_AUTH_STRING": SECRETS["PREFECT_AUTH"],
            "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "http://localhost",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_HOME": str(folder / "prefect-home"),
        }
        server = Program(folder / "prefect.log", words, env, f"{self.prefect}/health")
        stack.callback(server.kill)
        self.mlflow_server.wait()

    def start_mlflow(self, *, wait: bool = True) -> Program:
        """MLflow's server, as deploy/compose.yaml and the systemd unit start it."""
        words = [sys.executable, "-m", "shoal.serving.pages.mlflow_page", "server", "--host", HOST]
        words += ["--port", str(self._mlflow_port), "--workers", "2"]
        env = {
            **self._store,
            "MLFLOW_BACKEND_STORE_URI": f"postgresql://mlflow@{HOST}:{self.database}/mlflow",
            "PGPASSWORD": SECRETS["MLFLOW_DATABASE_PASSWORD"],
            "SHOAL_PAGE_AUTH": SECRETS["MLFLOW_AUTH"],
            "MLFLOW_SERVER_ALLOWED_HOSTS": "*",
            "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": "http://localhost",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        words += ["--serve-artifacts"]
        return Program(self.folder / "mlflow.log", words, env, f"{self.mlflow}/health", wait=wait, cwd=self.folder)

    def query(self, database: str, sql: str) -> list[tuple[Any, ...]]:
        """Rows of one of the databases."""
        import psycopg2

        word = SECRETS[f"{database.upper()}_DATABASE_PASSWORD"]
        opened = psycopg2.connect(host=HOST, port=self.database, user=database, dbname=database, password=word)
        try:
            with opened.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall()
        finally:
            opened.close()

    def _bucket(self) -> Any:
        import boto3

        keys = {"aws_access_key_id": SECRETS["AWS_ACCESS_KEY_ID"]}
        keys["aws_secret_access_key"] = SECRETS["AWS_SECRET_ACCESS_KEY"]
        return boto3.resource("s3", endpoint_url=self.objects, region_name="us-east-1", **keys).Bucket("shoal")

    def objects_in(self, prefix: str = "") -> dict[str, bytes]:
        """All objects of the bucket below a prefix, by key."""
        return {each.key: each.get()["Body"].read() for each in self._bucket().objects.filter(Prefix=prefix)}

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Put objects into the bucket, by key."""
        bucket = self._bucket()
        for key, data in objects.items():
            bucket.put_object(Key=key, Body=data)

    def mlflow_login(self) -> dict[str, str]:
        """The variables with which MLflow's clients log in."""
        user, _, word = SECRETS["MLFLOW_AUTH"].partition(":")
        return {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": word}

    def prefect_login(self) -> tuple[str, str]:
        """User and password of Prefect's server."""
        user, _, word = SECRETS["PREFECT_AUTH"].partition(":")
        return user, word


@contextmanager
def team(folder: Path, free_port: Callable[[], int]) -> Iterator[Team]:
    """A team's servers, until the end of the block."""
    with ExitStack() as stack:
        yield Team(folder, free_port, stack)
