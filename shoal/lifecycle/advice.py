"""Which method for a set: what `method.name: auto` chooses for it and why."""

from __future__ import annotations

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.method_choice import MethodChoice
from shoal.lifecycle.choosing_method import choose_method
from shoal.lifecycle.preparing import prepare_data, prepare_partition, with_scheme


def advise(settings: Settings) -> MethodChoice:
    """Return the method for some settings, whose method is auto.

    Raises:
        ShoalError: there is no such set, or it cannot be dealt to clients.
    """
    settings = with_scheme(settings)
    prepared = prepare_data(settings)
    _, table = prepare_partition(settings, prepared)
    return choose_method(settings, prepared, table)
