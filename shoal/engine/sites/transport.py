"""How bytes reach a site: whatever carries them, such as a pipe or a network, implements `Transport`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.core.errors import FailureCause, ShoalError
from shoal.engine.workers.worker_processes import WorkerLost


class SiteLost(WorkerLost):
    """A site did not answer; it may have done the work, and answers the same when it is asked again."""


class SiteRefusal(ShoalError):
    """A site does not do what it is asked, by its own rules; the message says why."""

    failure_cause = FailureCause.SITE_REFUSES


class Transport(Protocol):
    """Carries requests to sites and their answers back; threads may share it, one for each site at a time."""

    @property
    def sites(self) -> Sequence[str]:
        """The names of the sites that it reaches."""
        ...

    def ask(self, site: str, content: bytes) -> bytes:
        """Send bytes to a site, and return its answer.

        Raises:
            SiteLost: it did not answer.
        """
        ...
