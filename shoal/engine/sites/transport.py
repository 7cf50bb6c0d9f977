"""How bytes reach a site: whatever carries them, such as a pipe or a network, implements `Transport`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.core.errors import FailureCause, ShoalError
from shoal.engine.messages.wire import Failure
from shoal.engine.sites.frames import BadFrame, Files, SiteAnswer, SiteCall, pack, unpack
from shoal.engine.workers.worker_processes import WorkerLost

Waits = Callable[[str], object]
"""Is told, in a sentence, that a request waits for a site that is away."""


class SiteLost(WorkerLost):
    """A site did not answer; it may have done the work, and answers the same when it is asked again."""


class SiteRefusal(ShoalError):
    """A site does not do what it is asked, by its own rules; the message says why."""

    failure_cause = FailureCause.SITE_REFUSES


class SiteFailed(ShoalError):
    """A site has no answer.

    Args:
        site: its name.
        error: why.
        cause: kind of the failure.
    """

    def __init__(self, site: str, error: str, cause: FailureCause = FailureCause.OTHER) -> None:
        verb = " refuses" if cause == FailureCause.SITE_REFUSES else ""
        super().__init__(f"site {site}{verb}: {error}")
        self.answer = Failure(str(self), cause)


@dataclass(frozen=True)
class SiteStatus:
    """What the server knows of a site.

    Args:
        connected: whether it is there.
        seen: when it last said so, in seconds since 1970; None: never.
        code, torch: the digest of its Shoal, and its version of torch.
    """

    connected: bool = False
    seen: float | None = None
    code: str = ""
    torch: str = ""


class Transport(Protocol):
    """Carries requests to sites and their answers back; threads may share it, one for each site at a time."""

    @property
    def sites(self) -> Sequence[str]:
        """The names of the sites that it reaches."""
        ...

    def ask(self, site: str, content: bytes, waits: Waits = warnings.warn) -> bytes:
        """Send bytes to a site, and return its answer; `waits` is told when the site is away.

        Raises:
            SiteLost: it did not answer.
        """
        ...


def ask_site(
    transport: Transport, site: str, call: SiteCall, files: Files, waits: Waits = warnings.warn
) -> tuple[Mapping[str, Any], dict[str, bytes]]:
    """Return the facts and files with which a site answers.

    Args:
        transport: reaches it.
        site: its name.
        call, files: the request.
        waits: is told when the site is away.

    Raises:
        SiteFailed: it has no answer. SiteLost: it did not answer.
    """
    try:
        answer, back = unpack(SiteAnswer, transport.ask(site, pack(call, files), waits))
    except BadFrame as error:
        raise SiteFailed(site, str(error)) from None
    if answer.error is not None:
        raise SiteFailed(site, answer.error, FailureCause(answer.cause))
    return answer.facts, back
