"""What deploy/ gives a team: versions, secrets, addresses, and units that systemd takes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sources import ROOT

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXAMPLES = [DEPLOY / ".env.example", *sorted((DEPLOY / "systemd").glob("*.env.example"))]
SECRET = re.compile(r"PASSWORD|SECRET|AUTH|_KEY")
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(:?[?-][^}]*)?\}")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def variables(path: Path) -> dict[str, str]:
    """The variables of a file of them, those that are commented out too."""
    return dict(re.findall(r"^#?([A-Z][A-Z0-9_]+)=(.*)$", path.read_text(), re.MULTILINE))


def pins(file: str = "constraints.txt") -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / file).read_text(), re.MULTILINE))


def test_both_servers_are_of_the_versions_in_the_constraints(compose: dict[str, Any]) -> None:
    for name in ("mlflow", "prefect", "bucket"):
        service = compose["services"][name]
        assert service["build"] == {"context": "..", "dockerfile": "deploy/Dockerfile"}
        assert service["image"] == "shoal-team:local"
    text = (DEPLOY / "Dockerfile").read_text()
    assert "COPY constraints.txt /tmp/constraints.txt" in text
    (installed,) = re.findall(r"pip install (.*?)\\?\n", text)
    words = installed.split()
    assert words[words.index("--constraint") + 1] == "/tmp/constraints.txt"
    packages = words[words.index("--constraint") + 2 :]
    assert {"mlflow", "prefect", "psycopg2-binary", "boto3"} <= set(packages)
    assert set(packages) <= set(pins()), "a package without a pin would be of any version"
    for package in ("mlflow", "prefect"):
        assert version(package) in (pins()[package], pins(".ci/floor.txt")[package]), "what these tests run with"


def test_no_secret_has_a_value_or_a_default(compose: dict[str, Any]) -> None:
    for path in EXAMPLES:
        given = variables(path)
        assert given
        for name, value in given.items():
            if SECRET.search(name) or name == "PGPASSWORD":
                assert value == "", f"{path.name}: {name}"
            assert "@" not in value or ":" not in value.split("//")[1].split("@")[0], f"{path.name}: {name}"
    text = (DEPLOY / "compose.yaml").read_text()
    wanted = {name: rule or "" for name, rule in VARIABLE.findall(text)}
    assert set(wanted) <= set(variables(DEPLOY / ".env.example")), "the example names every variable"
    assert {name for name, rule in wanted.items() if rule.startswith(":?")} == {
        name for name in wanted if SECRET.search(name)
    }
    for name, service in compose["services"].items():
        for key, value in service.get("environment", {}).items():
            if SECRET.search(key):
                assert VARIABLE.fullmatch(value), f"{name}: {key}"
        assert not SECRET.search(json.dumps(service.get("command", ""))), "everybody reads command lines"


def test_the_secrets_are_not_in_git() -> None:
    asked = subprocess.run(["git", "check-ignore", "deploy/.env"], cwd=ROOT, capture_output=True, text=True)
    if "not a git repository" in asked.stderr:
        assert "/deploy/.env\n" in (ROOT / ".gitignore").read_text()
    else:
        assert asked.stdout.strip() == "deploy/.env"


def test_only_the_two_pages_are_open_and_only_to_this_machine(compose: dict[str, Any]) -> None:
    ports = {name: service.get("ports", []) for name, service in compose["services"].items()}
    assert {name: given for name, given in ports.items() if given} == {
        "mlflow": ["${LISTEN:-127.0.0.1}:5000:5000"],
        "prefect": ["${LISTEN:-127.0.0.1}:4200:4200"],
    }


def test_stores_answer_only_those_who_need_them_and_only_with_a_key(compose: dict[str, Any]) -> None:
    services = compose["services"]
    reached = {
        network: {name for name, service in services.items() if network in service["networks"]}
        for network in compose["networks"]
    }
    assert reached == {"databases": {"postgres", "mlflow", "prefect"}, "files": {"objects", "bucket", "mlflow"}}
    assert all(network["internal"] for network in compose["networks"].values())
    script = services["objects"]["entrypoint"][-1]
    assert "-ip.bind=127.0.0.1" in script, "master, volumes and filer ask for no key"
    assert "-s3.config=/tmp/keys.json" in script


def test_both_pages_are_behind_the_guard_with_a_password(compose: dict[str, Any]) -> None:
    mlflow, prefect = compose["services"]["mlflow"], compose["services"]["prefect"]
    assert mlflow["command"][:4] == ["python", "-m", "shoal.serving.pages.mlflow_page", "server"]
    assert prefect["command"][:3] == ["python", "-m", "shoal.serving.pages.prefect_page"]
    assert mlflow["environment"]["SHOAL_PAGE_AUTH"].startswith("${MLFLOW_AUTH:?")
    assert prefect["environment"]["PREFECT_SERVER_API_AUTH_STRING"].startswith("${PREFECT_AUTH:?")
    assert prefect["environment"]["PREFECT_SERVER_CSRF_PROTECTION_ENABLED"] == "true"
    for service in (mlflow, prefect):
        given = service["environment"]
        (origins,) = (value for name, value in given.items() if name.endswith("_CORS_ALLOWED_ORIGINS"))
        assert "*" not in origins
    units = {unit.name: unit.read_text() for unit in UNITS}
    assert "python -m shoal.serving.pages.mlflow_page server --host 127.0.0.1" in units["shoal-mlflow.service"]
    assert "python -m shoal.serving.pages.prefect_page --host 127.0.0.1" in units["shoal-prefect.service"]


def test_the_image_has_all_that_the_guard_needs(tmp_path: Path) -> None:
    """What deploy/Dockerfile copies, without the rest of Shoal."""
    (tmp_path / "shoal" / "serving").mkdir(parents=True)
    for source, target in re.findall(r"^COPY (\S+) /srv/shoal/(\S+)$", (DEPLOY / "Dockerfile").read_text(), re.M):
        (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, tmp_path / target)
    code = (
        "import sys; sys.path[:] = [sys.argv[1], *(p for p in sys.path if p != sys.argv[2])];"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f)];"
        "import shoal.serving.pages.mlflow_page, shoal.serving.pages.prefect_page;"
        "assert shoal.serving.pages.__file__.startswith(sys.argv[1]);"
        "print({'shoal.engine', 'shoal.core', 'requests'} & set(sys.modules))"
    )
    words = [sys.executable, "-c", code, str(tmp_path), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "set()", done.stderr


def test_services_are_watched_started_again_and_keep_what_they_have(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        if name == "bucket":
            continue
        assert service["healthcheck"]["test"][0] == "CMD"
        assert service["restart"] == "unless-stopped"
    for name in ("postgres", "objects"):
        (volume,) = (each for each in services[name]["volumes"] if not each.startswith("."))
        assert volume.split(":")[0] in compose["volumes"]
    given = json.dumps([service.get("environment", {}) for service in services.values()])
    hosts = set(re.findall(r"[@/](\w+):\d+", given))
    assert hosts == {"postgres", "objects"}, "addresses name services"
    for image in (service["image"] for service in services.values()):
        assert "." not in image.split(":")[0], f"{image}: a registry's host name"
        assert ":" in image, f"{image}: of any version"


def test_the_script_of_the_databases_can_be_run_by_the_image() -> None:
    script = DEPLOY / "create-databases.sh"
    assert os.access(script, os.X_OK), (
        "what cannot be run is read into the image's own script, and its `set -u` with it"
    )
    asked = subprocess.run(["sh", script], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert asked.returncode != 0
    assert "the password of the database user mlflow" in asked.stderr


def parsed(unit: Path) -> list[tuple[str, str, str]]:
    """Section, key and value of each line of a unit."""
    found, section = [], ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.append((section, key, value))
    return found


@pytest.mark.long
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_run_as_their_own_user_and_start_again(unit: Path) -> None:
    lines = parsed(unit)
    service = [(key, value) for section, key, value in lines if section == "Service"]
    given = dict(service)
    # Runs reach the server of the sites by a file of their user's.
    of_runs = {"shoal-worker@.service": "shoal", "shoal-sites.service": "shoal"}
    assert given["User"] == of_runs.get(unit.name, unit.stem), "no keys for what flows run"
    assert given["Restart"] == "on-failure"
    assert given["NoNewPrivileges"] == "true"
    assert ("Install", "WantedBy", "multi-user.target") in lines
    command = given["ExecStart"].split()
    known: set[str] = set()
    if "EnvironmentFile" in given:
        known = set(variables(DEPLOY / "systemd" / f"{Path(given['EnvironmentFile']).name}.example"))
    assert set(re.findall(r"\$\{(\w+)\}", given["ExecStart"])) <= known
    assert not SECRET.search(given["ExecStart"])
    # The commands, and each of their options, are the installed programs' own.
    program = Path(sys.executable).with_name(Path(command[0]).name)
    first_option = next((place for place, word in enumerate(command) if word.startswith("--")), len(command))
    words = command[1:first_option]
    env = {**os.environ, "COLUMNS": "300", "SHOAL_PAGE_AUTH": "me:word"}
    told = subprocess.run([program, *words, "--help"], capture_output=True, text=True, env=env, cwd=ROOT)
    assert told.returncode == 0, told.stderr
    for word in command[first_option:]:
        if word.startswith("--"):
            assert word in told.stdout, word


KEYS = {
    "Unit": {"Description", "Documentation", "After", "Wants"},
    "Install": {"WantedBy"},
}
"""What units say outside their services, for machines without systemd."""


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        outside = {(section, key) for section, key, _ in parsed(unit) if section != "Service"}
        assert outside <= {(section, key) for section, keys in KEYS.items() for key in keys}
    if shutil.which("systemd-analyze") is None:
        return

    def verify(change: tuple[str, str] = ("", "")) -> subprocess.CompletedProcess[str]:
        paths = []
        for unit in UNITS:
            text = unit.read_text().replace("/srv/shoal/.venv/bin", str(Path(sys.executable).parent))
            paths.append(tmp_path / unit.name.replace("@", "@0"))
            paths[-1].write_text(text.replace(*change) if change[0] else text)
        return subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True)

    fine = verify()
    assert fine.returncode == 0, fine.stderr
    assert not fine.stderr
    assert "Unknown" in verify(("ProtectSystem=", "ProtectTheSystem=")).stderr
