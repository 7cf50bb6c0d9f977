"""What a study and its sites hold to know each other: certificates, made with `nvflare cert` and `nvflare package`.

sites/                    where the study is led
  study.yaml  ca/         its name, host and port; the authority that signs for it
  keys/                   certificate and key of the server
  approved/               what each site gets back: NAME.signed.zip
  socket                  by which runs of this machine reach the server
  answers.txt             what the sites said to the last dry run
site/                     at a site
  request/                its key, which stays here, and NAME.request.zip for the lead
  keys/                   what the lead has signed, with the key
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shoal.core.durable import lock_if_free, owner_of, private_folder
from shoal.core.errors import ShoalError
from shoal.engine.settings import places

PROFILE = "study.yaml"
CERTIFICATE = "certificate"


@dataclass(frozen=True)
class Study:
    """A study at the lead.

    Attributes:
        folder: of its files, in the lead's home.
        host, port: where sites reach its server.
    """

    folder: Path
    host: str
    port: int

    @property
    def socket(self) -> Path:
        """The socket by which runs of this machine reach the server."""
        return self.folder / "socket"

    @property
    def answers(self) -> Path:
        """The file of what the sites said to the last dry run, a line each."""
        return self.folder / "answers.txt"

    @property
    def sites(self) -> list[str]:
        """The names of approved sites, sorted."""
        return sorted(path.name.removesuffix(".signed.zip") for path in (self.folder / "approved").glob("*.signed.zip"))

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the study's authority, which a site is told on another way."""
        return str(json.loads((self.folder / "ca" / "ca.json").read_text())["rootCA_fingerprint"])

    def valid_until(self, site: str) -> str:
        """Return when the certificate of a site ends, as ISO 8601."""
        with zipfile.ZipFile(self.folder / "approved" / f"{site}.signed.zip") as signed:
            return str(json.loads(signed.read("signed.json"))["certificate"]["valid_until"])


def open_study() -> Study:
    """Return the study that is led from this home.

    Raises:
        ShoalError: there is none.
    """
    path = places.home() / "sites" / PROFILE
    if not path.exists():
        raise ShoalError("no study is led from here: make one with `shoal sites init`")
    server = yaml.safe_load(path.read_text())["server"]
    return Study(path.parent, server["host"], server["fed_learn_port"])


def make_study(home: Path, name: str, host: str, port: int) -> Study:
    """Make a study: its authority, and certificate and key of its server.

    Raises:
        ShoalError: there is one already, or a name does not suit.
    """
    folder = home / "sites"
    if folder.exists():
        raise ShoalError(f"a study is led from here already: {folder}")
    private_folder(folder)
    server = {"host": host, "fed_learn_port": port, "admin_port": port}
    profile = {"name": name, "scheme": "grpc", "connection_security": "mtls", "server": server}
    (folder / PROFILE).write_text(yaml.safe_dump(profile))
    study = Study(folder, host, port)
    try:
        nvflare(folder, "cert", "init", "--profile", PROFILE, "-o", "ca")
        _, signed = sign(folder, request(folder, name, host, port))
        package(folder, signed, study.fingerprint)
    except ShoalError:
        shutil.rmtree(folder)
        raise
    return study


def approve(study: Study, path: Path) -> tuple[str, Path]:
    """Sign the request of a site; return its name, and the file that it gets back.

    Raises:
        ShoalError: it is no request, or a site of this name is approved.
    """
    name, signed = sign(study.folder, path)
    target = study.folder / "approved" / f"{name}.signed.zip"
    if target.exists():
        raise ShoalError(f"a site {name} is approved already: to sign for another key, remove {target} first")
    private_folder(target.parent)
    return name, signed.rename(target)


def request(folder: Path, study: str, name: str, port: int | None = None) -> Path:
    """Make a key, and the request that it be approved; the key stays in the folder.

    Args:
        folder: of the study or site.
        study: name of the study.
        name: of the site, or the host of the server.
        port: of the server; None: it is a site.

    Raises:
        ShoalError: there is a request already, or a name does not suit.
    """
    private_folder(folder)
    about: dict[str, Any] = {"name": name, "type": "client", "org": "site"}
    if port is not None:
        about |= {"type": "server", "org": "lead", "default_host": name, "fed_learn_port": port}
    participant = folder / "participant.yaml"
    participant.write_text(yaml.safe_dump({"name": study, "participants": [about]}))
    nvflare(folder, "cert", "request", "-p", participant.name, "--out", "request")
    return folder / "request" / f"{name}.request.zip"


def sign(folder: Path, path: Path) -> tuple[str, Path]:
    """Sign a request with the study's authority; return the name in it, and the signed file."""
    signed = folder / "new.signed.zip"
    words = ("-c", "ca", "--profile", PROFILE, "--out", str(signed), "--force")
    told = nvflare(folder, "cert", "approve", str(path.resolve()), *words)
    return str(told["name"]), signed


def package(folder: Path, signed: Path, fingerprint: str) -> None:
    """Put what the lead has signed together with the key of the request, in the folder `certificate`.

    Of NVFlare's kit nothing else is kept: with its scripts a site would take jobs and their code.

    Raises:
        ShoalError: it was signed by another authority than the one with the fingerprint, or for another request.
    """
    words = ("--request-dir", "request", "--fingerprint", fingerprint, "-w", "kit")
    try:
        nvflare(folder, "package", str(signed.resolve()), *words)
    except ShoalError as error:
        raise ShoalError(
            f"{signed.name} does not belong to this site's request, or not to this fingerprint: ask the lead ({error})"
        ) from None
    (startup,) = folder.glob("kit/*/prod_*/*/startup")
    for path in startup.glob("*.sh"):
        path.unlink()
    shutil.rmtree(folder / CERTIFICATE, ignore_errors=True)
    startup.rename(folder / CERTIFICATE)
    shutil.rmtree(folder / "kit")


def keys_of(folder: Path) -> Path:
    """Return the folder of certificate and key of a study or site.

    Raises:
        ShoalError: there is none.
    """
    keys = folder / CERTIFICATE
    if not keys.exists():
        raise ShoalError("this is no site of a study yet: `shoal site init`, then `shoal site join`")
    return keys


@contextmanager
def serving(folder: Path, what: str) -> Iterator[None]:
    """Serve as the only process that does, and end at once when it is told to: threads of the network do not end.

    Args:
        folder: of the study or site.
        what: serves here, for the sentence.

    Raises:
        ShoalError: another process serves.
    """
    with lock_if_free(folder / "serve.lock", patience=5) as free:
        if not free:
            raise ShoalError(f"{what} runs already (process {owner_of(folder / 'serve.lock')})")
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            os._exit(130)


def nvflare(folder: Path, *words: str) -> dict[str, Any]:
    """Run a command of NVFlare in a folder, which is also its home; return what it tells.

    Raises:
        ShoalError: it refuses; the message says why.
    """
    code = "from nvflare.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words, "--format", "json"],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    told: dict[str, Any] = json.loads(lines[-1]) if lines else {"message": done.stderr.strip()[-500:], "hint": ""}
    if done.returncode:
        raise ShoalError(f"{told.get('message', '')} {told.get('hint') or ''}".strip())
    return dict(told["data"])
