"""The method of a search that leaves it open: chosen once, from the settings that all trials share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shoal.core.records import BadRecord, record_from_json, record_to_json
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings, with_method
from shoal.engine.store.codec import StoreError, read_sealed, write_sealed
from shoal.engine.store.method_choice import MethodChoice
from shoal.lifecycle.choosing_method import choose_method
from shoal.lifecycle.preparing import prepare_data, prepare_partition, with_scheme
from shoal.sweeps.search.definition import SearchDefinition, check_search
from shoal.sweeps.search.store import DATABASE

FILE = "method.json"
"""The choice, in the folder of the search."""


def with_chosen_method(definition: SearchDefinition, tell: Callable[[str], None] = lambda _: None) -> SearchDefinition:
    """Check a definition, and return it with the method that `method.name: auto` stands for.

    The choice is kept in the folder of the search: later calls continue with the same method, whatever was added to
    the data set or installed since.

    Args:
        definition: of a search; one that names its method, or varies it, is returned as it is.
        tell: takes the sentences on the choice.

    Raises:
        ShoalError: the search cannot be executed (`check_search`), or the data set cannot be prepared.
    """
    check_search(definition)
    if not definition.leaves_method_open:
        return definition
    asked = definition.settings_with({})
    settings = with_scheme(asked)
    folder = places.searches() / definition.name
    kept = kept_choice(folder)
    choice = kept
    if choice is None or choice.settings_sha256 != settings.digest():
        choice = chosen_method(settings)
    chosen = definition.model_copy(update={"settings": with_method(asked, choice.settings)})
    for sentence in method_sentences(choice):
        tell(sentence)
    check_search(chosen)
    if kept is None or not (folder / DATABASE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_sealed(folder / FILE, record_to_json(choice))
    return chosen


def chosen_method(settings: Settings) -> MethodChoice:
    """Return the method for the settings that all trials share, and how it was chosen."""
    prepared = prepare_data(settings)
    _, table = prepare_partition(settings, prepared)
    return choose_method(settings, prepared, table)


def kept_choice(folder: Path) -> MethodChoice | None:
    """Return the choice that a search was started with; None where its method was named, or nothing is kept.

    Args:
        folder: of the search.
    """
    try:
        return record_from_json(MethodChoice, read_sealed(folder / FILE))
    except (StoreError, BadRecord):
        return None


def method_sentences(choice: MethodChoice) -> list[str]:
    """Return which method was chosen and why, and which settings it does not use."""
    found = [f"All trials have the method {choice.method}, which auto chose: {choice.reason}."]
    if choice.unused:
        found.append(f"{choice.unused[0].upper()}{choice.unused[1:]}.")
    return found
