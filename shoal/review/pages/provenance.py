"""Where a run comes from, as its report tells it: the settings that were chosen, links to origins, how to repeat it."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.run_settings import Settings, flatten, make_settings
from shoal.engine.store.lineage import DataVersion, PartitionVersion
from shoal.engine.store.run_folder import LINEAGE, SETTINGS, RunFolder
from shoal.review.mlflow_log.page import mlflow_page

ALWAYS = ("method.name", "data.name", "partition.kind")
"""Settings that are shown whether they are the defaults or not: by them the other defaults are chosen."""
LONGEST = 120
"""Characters of a value that are shown, at most."""
FILES = (SETTINGS, LINEAGE, "rounds.parquet", "clients.parquet", "links.parquet", "clusters.parquet", "events.jsonl")
"""The files of a run that its report links to, where they are there."""


@dataclass(frozen=True)
class Origin:
    """One line of a run's lineage.

    Attributes:
        what: what comes from there.
        name: what it is called.
        link: where a browser finds it; empty where it has no address.
        digest: by what it can be told from others; may be empty.
    """

    what: str
    name: str
    link: str = ""
    digest: str = ""


def chosen_settings(settings: Settings) -> list[tuple[str, str, str]]:
    """The settings that differ from the defaults of the method, the data and the partition scheme.

    Args:
        settings: of the run.

    Returns:
        Of each its key, its value, and the default (of those of `ALWAYS`: of all runs).
    """
    values, plain = flatten(settings), settings.to_json()
    fallback = flatten(make_settings({}))
    try:
        default = flatten(make_settings({part: {key: plain[part][key]} for part, key in map(halves, ALWAYS)}))
    except ShoalError:  # a setting that this method cannot do without
        default = fallback
    rows = [(key, shown(values[key]), shown(fallback.get(key))) for key in ALWAYS]
    others = [key for key in values if key not in ALWAYS and (key not in default or values[key] != default[key])]
    return rows + [(key, shown(values[key]), shown(default.get(key))) for key in others]


def halves(key: str) -> tuple[str, str]:
    """A setting's section and its key there."""
    section, _, name = key.partition(".")
    return section, name


def shown(value: Any) -> str:
    """A setting's value in a table, without passwords and not too long."""
    text = "none" if value is None else masked(str(value))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def origins(run: RunFolder) -> list[Origin]:
    """Where the run's numbers come from: MLflow run, code, data, partition, machine.

    Args:
        run: the run's folder.
    """
    lineage = run.lineage()
    rows = []
    if run_id := lineage.mlflow_run:
        page = None
        with contextlib.suppress(ShoalError):  # the store's address names a variable that is not set here
            page = mlflow_page(run)
        # Without a page one can be started: the name is then what to look for there.
        name = run_id if page else f"{run_id}, on the page that shoal serve starts"
        rows.append(Origin("MLflow run", name, masked(page or "")))
    if prefect := lineage.prefect:
        rows.append(Origin("Prefect flow run", prefect.flow_run, masked(prefect.page or "")))
    code = lineage.git
    if code.commit:
        changes = " with changes" if code.dirty else ""
        rows.append(Origin("commit", f"{code.commit}{changes}", code.page or ""))
    rows.append(data_origin("data", run, lineage.data, lineage.data.name))
    rows.append(data_origin("partition", run, lineage.partition, run.folder_of("partition").name))
    rows.append(Origin("settings", SETTINGS, "", f"sha256 {lineage.settings_sha256}"))
    machine = ", ".join(lineage.hardware.gpus) or f"{lineage.hardware.cores} cores"
    rows.append(Origin("machine", f"{lineage.resolved.device}, {lineage.resolved.precision}, {machine}"))
    versions = ", ".join(f"{name} {version}" for name, version in lineage.versions.items())
    rows.append(Origin("versions", versions))
    return rows


def data_origin(what: str, run: RunFolder, version: DataVersion | PartitionVersion, name: str) -> Origin:
    """The line of the data set (`data`) or the partition (`partition`) of a run, with a link where it is here."""
    folder = run.folder_of(what)
    link = folder.as_uri() if folder.is_absolute() and folder.is_dir() else ""
    return Origin(what, name, link, f"sha256 {version.digest}, DVC {version.dvc}")


def run_files(run: RunFolder) -> list[str]:
    """The files of the run that lie beside its report."""
    return [name for name in FILES if (run.path / name).exists()]


def repeat_command(run: RunFolder) -> str:
    """The command that computes the run anew from its settings, as typed into a shell."""
    return f"shoal run {shlex.quote(str(run.path / SETTINGS))}"
