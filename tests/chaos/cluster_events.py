"""What may happen to a cluster on which a run is at work."""

from __future__ import annotations

import signal

from tests.chaos.cluster_trial import ClusterTrial, Hit

NO_WORKER = "has had no worker for"


def _head(trial: ClusterTrial, how: signal.Signals) -> str:
    trial.cluster.hit_head(how)
    return f"the Dask scheduler at {trial.cluster.address}"


def head_killed(trial: ClusterTrial) -> str:
    """The scheduler is killed."""
    return _head(trial, signal.SIGKILL)


def head_stopped(trial: ClusterTrial) -> str:
    """The same is stopped: its connections stay, and nothing is answered."""
    return _head(trial, signal.SIGSTOP)


def host_killed(trial: ClusterTrial) -> str:
    """One of two hosts is killed."""
    trial.random.choice(trial.cluster.hosts).send(signal.SIGKILL)
    return NO_WORKER


def hosts_killed(trial: ClusterTrial) -> str:
    """All hosts are killed."""
    for host in trial.cluster.hosts:
        host.send(signal.SIGKILL)
    return NO_WORKER


EVENTS: dict[tuple[str, str], tuple[int, Hit]] = {
    ("scheduler killed", "dask"): (2, head_killed),
    ("scheduler stopped", "dask"): (2, head_stopped),
    ("one of two hosts killed", "dask"): (1, host_killed),
    ("all hosts killed", "dask"): (1, hosts_killed),
}
"""By event and runner: how many of six tries are of it, and what happens."""
