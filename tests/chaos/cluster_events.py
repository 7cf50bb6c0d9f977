"""What may happen to a cluster on which a run is at work."""

from __future__ import annotations

import signal
import time

from tests.chaos.cluster_trial import ClusterTrial, Hit

NO_WORKER = "has had no worker for"
REMOTE_STORE = "the remote store s3://"
AWAY = (1.0, 6.0)
"""Seconds for which a store that comes back is away, at least and at most."""


def _head(trial: ClusterTrial, how: signal.Signals) -> str:
    trial.cluster.hit_head(how)
    return f"the Dask scheduler at {trial.cluster.address}"


def head_killed(trial: ClusterTrial) -> str:
    """The scheduler is killed."""
    return _head(trial, signal.SIGKILL)


def head_stopped(trial: ClusterTrial) -> str:
    """The same is stopped: its connections stay, and nothing is answered."""
    return _head(trial, signal.SIGSTOP)


def store_killed(trial: ClusterTrial) -> str:
    """The object store is killed."""
    trial.store.kill()
    return REMOTE_STORE


def store_stopped(trial: ClusterTrial) -> str:
    """The object store is stopped: it takes connections, and nothing is answered."""
    trial.store.send(signal.SIGSTOP)
    return REMOTE_STORE


def store_restarted(trial: ClusterTrial) -> str:
    """The object store is killed, and is back after some seconds with all that was in it."""
    trial.store.kill()
    time.sleep(trial.random.uniform(*AWAY))
    trial.store.start()
    return REMOTE_STORE


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
    ("store killed", "dask"): (1, store_killed),
    ("store stopped", "dask"): (1, store_stopped),
    ("store killed, and back", "dask"): (2, store_restarted),
    ("one of two hosts killed", "dask"): (1, host_killed),
    ("all hosts killed", "dask"): (1, hosts_killed),
}
"""By event and runner: how many of ten tries are of it, and what happens."""
