"""The pool of workers, as the engine sees it."""

from __future__ import annotations

from typing import Any, Protocol

from shoal.engine.messages.wire import Answer


class Pool(Protocol):
    """Workers, as the engine sees them."""

    @property
    def count(self) -> int:
        """The number of requests that are worked on at once."""
        ...

    @property
    def max_requests(self) -> int:
        """The number of requests to give to it at once; those without a free worker wait there."""
        ...

    def call(self, request: Any) -> Answer:
        """Have a free worker do a `Request`; wait for one if all are busy.

        Raises:
            WorkerLost: the process that did it ended.
            ClusterLost: no worker can be reached any more (`shoal.engine.cluster.dask_pool`).
        """
        ...
