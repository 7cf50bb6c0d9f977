"""The rules of a site as its agent asks for them."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.engine.settings.run_settings import Settings
from shoal.engine.sites.frames import SiteCall


class Rules:
    """Rules that allow everything; a site has others."""

    least_group = 1
    """Least number of samples in a cell of a table that leaves the site."""
    asks = False
    """Whether each run waits until the site's person has approved it."""
    tells_columns = True
    """Whether the site tells what `method.name: auto` asks about the columns of its set."""
    mask_key: str | None = None
    """Secret key of the masks of the site's clients, in hex digits; None: each run has keys of its own."""

    def refusal(self, call: SiteCall, settings: Settings | None, samples: int | None) -> str | None:
        """Return why a request is refused; None: it is not.

        Args:
            call: the request.
            settings: of its run; None before there is one.
            samples: training samples of the site's smallest client in the run; None: there is no run.
        """
        return None

    def spend(self, call: SiteCall, settings: Settings, clients: Sequence[int]) -> None:
        """Account for new private updates of clients before they are computed.

        Raises:
            SiteRefusal: they would exceed the site's budget.
        """

    def take_in(self, name: str) -> None:
        """Append to a set what is new of it, before the lead is told about it."""

    def leave(self, call: SiteCall | None, answer: bytes) -> None:
        """Record an answer that is about to leave.

        Args:
            call: the request; None: it could not be read.
            answer: all of its bytes.
        """
