"""A finished run with equal settings, data and code: a new run would give the same result."""

from __future__ import annotations

from shoal.engine.settings.hardware import resolve_machine
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.lineage import Environment, Lineage, current_environment, encoder_of_run
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.claim import is_done
from shoal.lifecycle.preparing import prepare_data, prepare_partition, with_known_choices
from shoal.lifecycle.starting import runs_like

USED_AGAIN = "used_again"
"""Event of a finished run: a schedule asked for an equal one."""


def equal_run(settings: Settings) -> RunFolder | None:
    """Return the newest finished run with equal settings, data, partition, encoder, device and code; None without one.

    Args:
        settings: of the run that is wanted.

    Raises:
        ShoalError: the data or the partition refuse the settings.
    """
    settings = with_known_choices(settings)
    if settings.chooses_method or settings.chooses_clusters:
        return None  # nothing was chosen for this data set before, so no run is equal
    prepared = prepare_data(settings)
    _, partition = prepare_partition(settings, prepared)
    encoder = encoder_of_run(settings, prepared)
    now = current_environment()
    for run in runs_like(settings):
        lineage = run.lineage()
        same_data = (lineage.data.digest, lineage.partition.digest) == (prepared.manifest.digest, partition.digest)
        same_machine = lineage.resolved == resolve_machine(settings) and lineage.encoder == encoder
        if is_done(run) and same_data and same_machine and is_same_code(lineage, now):
            return run
    return None


def is_same_code(lineage: Lineage, now: Environment) -> bool:
    """Return whether a run was computed by the Shoal and the packages that are here now."""
    return (lineage.shoal.sha256, lineage.versions) == (now.shoal.sha256, now.versions)
