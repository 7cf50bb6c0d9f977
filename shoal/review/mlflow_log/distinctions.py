"""The settings that differ among the runs of an MLflow experiment: in the runs' names, and as columns of its view.

A hidden tag of the experiment holds the chosen settings of its first run, and every setting in which a later run
differs from it: these are all the settings that differ among its runs. Each run that is logged adds its own, so no
other run is read. When a further setting begins to differ, the names that Shoal gave to earlier runs are updated; a
name that a user gave stays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shoal.engine.settings.defaults import changed_settings
from shoal.engine.settings.run_settings import Settings
from shoal.methods.registry import METHODS
from shoal.methods.scores.metrics import METRICS
from shoal.review.mlflow_log.rounds import VERDICT, allowed_name, metric_name

DISTINCTIONS = "mlflow.shoal.distinctions"
"""Tag of an experiment: what sets its runs apart."""
NAME = "mlflow.shoal.name"
"""Tag of a run: the name that Shoal gave it."""
SEPARATOR = " · "
WORDS_IN_FRONT = 2
"""Words of a title that a name begins with: the method and the data."""
MAX_NAME_CHARACTERS = 250
"""Characters of a run's name that MLflow's tables hold."""
MAX_VALUE_CHARACTERS = 24
"""Characters of a setting's value in a name."""
MAX_RENAMED = 200
"""The number of runs, the newest, that get a new name when a further setting begins to differ."""
COLUMN_PIXELS = 90
CHARACTER_PIXELS = 7
MARGIN_PIXELS = 32
SCORE_CHARACTERS = 18
"""Characters of a score with all its digits."""
WIDE_COLUMNS = {"attributes.`Run Name`": 330, "runDateAndNestInfo": 150}
"""Widths of the view's columns; those with the name and the date of a run are wider and come first."""
MAX_COLUMNS = 8
"""Settings that differ, in columns of the view."""
IN_TITLE = ("partition.clients", "partition.transform", "seed")
"""Settings that are in every name, beside method, data and partition scheme."""
PARAMETER_OF = {"dirichlet": "beta", "labels_per_client": "labels", "majority": "p", "by_column": "column"}
"""The parameter of a partition scheme that is in every name."""
IN_WORDS = {("model.clusters", "0"): "as classes"}
"""Values of settings that need words, by setting and value."""
NOT_COMPUTED = ("tracking.", "checkpoint.", "workers.", "choose.")
"""Sections that say where a run is done and shown, or how a setting was chosen: not what is computed."""
OF_TRAINING = ("local.", "augment.")
"""Sections that a method does not read whose clients take no gradient steps."""
NIGHT_DECISION = "shoal.night.decision"
"""Tag of a night's run and of the version of its model: what the night decided about it."""
VIEW = "shoal"
"""Key of a saved view of an experiment's page."""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
"""Tag of an experiment: the saved view."""
PRIMARY = "mlflow.experiment.primaryMetric.name"
GREATER_IS_BETTER = "mlflow.experiment.primaryMetric.greaterIsBetter"
"""Tags of an experiment: the score that MLflow's page shows first."""
LOWER_IS_BETTER = frozenset(metric.name for metric in METRICS if metric.better == "lower")
ALWAYS_SHOWN = ("method.name", "data.name", "partition.kind", "partition.clients", "seed")
"""The settings that always have columns in the view."""


@dataclass(frozen=True)
class Distinctions:
    """The settings and scores that tell the runs of an experiment apart.

    Args:
        first: the chosen settings of its first run, by key; None before it has one.
        settings: the settings that differ among its runs, in alphabetical order.
        scores: the scores that its runs are judged by.
        nights: whether any of its runs is a night's, which has a decision.
    """

    first: Mapping[str, str] | None = None
    settings: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    nights: bool = False

    @classmethod
    def from_tags(cls, tags: Mapping[str, str]) -> Distinctions:
        """Read the tag of an experiment; a tag that cannot be read counts as none."""
        try:
            found = json.loads(tags[DISTINCTIONS])
            nights = bool(found.get("nights", False))
            return cls(dict(found["first"]), tuple(found["settings"]), tuple(found["scores"]), nights)
        except (KeyError, TypeError, ValueError):
            return cls()

    def to_json(self) -> str:
        """Return the tag's value."""
        return json.dumps(asdict(self))

    def with_run(self, chosen: Mapping[str, str], scores: Iterable[str] = (), *, night: bool = False) -> Distinctions:
        """Return the distinctions after a run was added; adding it again changes nothing.

        >>> one = Distinctions().with_run({"rounds": "5"})
        >>> one.with_run({"rounds": "9", "local.lr": "0.1"}).settings
        ('local.lr', 'rounds')
        """
        first = chosen if self.first is None else self.first
        differing = {key for key in first.keys() | chosen.keys() if first.get(key) != chosen.get(key)}
        return Distinctions(
            first,
            tuple(sorted({*self.settings, *differing})),
            tuple(dict.fromkeys((*self.scores, *scores))),
            self.nights or night,
        )


def is_used(key: str, method: str | None) -> bool:
    """Return whether a method reads a setting.

    Args:
        key: of the setting.
        method: its name; settings of a method that this version does not know all count as used.

    >>> is_used("local.lr", "fedcc"), is_used("local.lr", "fedkmeans"), is_used("rounds", "fedkmeans")
    (True, False, True)
    """
    if method not in METHODS or METHODS[method].trains:
        return True
    return not key.startswith(OF_TRAINING)


def chosen_settings(settings: Settings) -> dict[str, str]:
    """Return the settings that a person chose and that the run's title does not say; of a long value its digest.

    Settings that the method does not read are left out.
    """
    found = {}
    parameter = f"partition.{PARAMETER_OF.get(settings.partition.kind, '')}"
    for key, value in changed_settings(settings).items():
        if key in IN_TITLE or key == parameter or key.startswith(NOT_COMPUTED):
            continue
        if not is_used(key, settings.method.name):
            continue
        text = str(value)
        if len(text) > MAX_VALUE_CHARACTERS:
            text = f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]}"
        found[key] = text
    return found


def title(settings: Settings) -> str:
    """Return the title of a run, with which all its names end: method, data, partition, seed.

    >>> from shoal.engine.settings.run_settings import make_settings
    >>> title(make_settings({"method": "fedcc", "partition": {"kind": "dirichlet", "beta": 0.3}}))
    'fedcc digits dirichlet(0.3) x5 seed 0'
    """
    return shorten(f"{settings.method.name} {settings.data.name} {partition_title(settings)} seed {settings.seed}")


def partition_title(settings: Settings) -> str:
    """Return the scheme of a partition, with its parameter and the number of clients."""
    partition = settings.partition
    words = str(partition.kind)
    if partition.kind in PARAMETER_OF:
        words += f"({getattr(partition, PARAMETER_OF[partition.kind])})"
    if partition.clients:
        words += f" x{partition.clients}"
    transform = getattr(partition, "transform", "none")
    if transform != "none":
        words += f"+{transform}"
    return words


def run_name(values: Mapping[str, Any], differing: Iterable[str], title: str) -> str:
    """Return the name of a run: its method and data, what sets it apart, then the rest of its title.

    MLflow's tables show the beginning of a name: settings alone would not say what they are settings of.

    Args:
        values: its settings by key, or MLflow's parameters.
        differing: the settings that differ among the runs of its experiment; the run need not have them all, and those
            that its method does not read are left out.
        title: of the run.

    >>> run_name({"rounds": "5", "local.lr": "0.0010"}, ["local.lr", "rounds"], "fedcc digits iid x5 seed 0")
    'fedcc digits · lr 0.001 · rounds 5 · iid x5 seed 0'
    """
    method = values.get("method.name")
    present = [key for key in differing if key in values and is_used(key, method)]
    last_words = [key.rpartition(".")[2] for key in present]
    parts = []
    for key, word in zip(present, last_words, strict=True):
        label = word
        if last_words.count(word) > 1:
            label = key
        parts.append(f"{label} {IN_WORDS.get((key, str(values[key])), value_in_name(values[key]))}")
    room = MAX_NAME_CHARACTERS - len(title.replace(" ", SEPARATOR, 1)) - len(SEPARATOR)
    middle = SEPARATOR.join(parts)
    if not middle or room < MAX_VALUE_CHARACTERS:
        return title
    words = title.split(" ")
    ends = (" ".join(words[:WORDS_IN_FRONT]), " ".join(words[WORDS_IN_FRONT:]))
    return SEPARATOR.join((ends[0], shorten(middle, room), ends[1]))


def title_in(name: str) -> str:
    """Return the title in a name that `run_name` made.

    >>> title_in("fedcc digits · lr 0.001 · rounds 5 · iid x5 seed 0"), title_in("fedcc digits iid x5 seed 0")
    ('fedcc digits iid x5 seed 0', 'fedcc digits iid x5 seed 0')
    """
    first, *others = name.split(SEPARATOR)
    return " ".join((first, *others[-1:]))


def value_in_name(value: Any) -> str:
    """Return a setting's value for a name: numbers without trailing zeros, and not too long."""
    text = str(value)
    if text in ("None", "True", "False"):
        return text.lower()
    try:
        return f"{float(text):g}"
    except ValueError:
        return shorten(text, MAX_VALUE_CHARACTERS)


def shorten(text: str, characters: int = MAX_NAME_CHARACTERS) -> str:
    """Return a text cut to a number of characters: databases refuse longer names, and the whole run with them."""
    if len(text) > characters:
        return f"{text[: characters - 1]}…"
    return text


def distinguish(
    client: Any, experiment_id: str, settings: Settings, scores: Iterable[str] = (), *, night: bool = False
) -> tuple[str, ...]:
    """Add a run to what sets the runs of its experiment apart, and bring earlier names and the view up to date.

    Args:
        client: an MlflowClient.
        experiment_id: of the experiment.
        settings: of the run.
        scores: the names of the scores that judge it, as in a run's tables.
        night: whether a night began it.

    Returns:
        The settings that differ among the runs of the experiment.
    """
    experiment_tags = client.get_experiment(experiment_id).tags
    before = Distinctions.from_tags(experiment_tags)
    now = before.with_run(chosen_settings(settings), scores, night=night)
    if now.settings != before.settings:
        rename_runs(client, experiment_id, now.settings)
    # The names come first: after a kill in between they are given again.
    tags = {DISTINCTIONS: now.to_json(), VIEW_TAG: view(now)}
    if PRIMARY not in experiment_tags and now.scores:
        tags |= {PRIMARY: metric_name(now.scores[0]), GREATER_IS_BETTER: str(now.scores[0] not in LOWER_IS_BETTER)}
    for key, value in tags.items():
        if experiment_tags.get(key) != value:
            set_experiment_tag(client, experiment_id, key, value)
    return now.settings


def set_experiment_tag(client: Any, experiment_id: str, key: str, value: str) -> None:
    """Set a tag of an experiment, also where another run creates it at the same moment."""
    from mlflow.exceptions import MlflowException

    try:
        client.set_experiment_tag(experiment_id, key, value)
    except MlflowException:
        if client.get_experiment(experiment_id).tags.get(key) != value:
            client.set_experiment_tag(experiment_id, key, value)


def rename_runs(client: Any, experiment_id: str, differing: tuple[str, ...]) -> None:
    """Update the names that Shoal gave to the newest `MAX_RENAMED` runs of an experiment."""
    for found in client.search_runs([experiment_id], max_results=MAX_RENAMED):
        given = found.data.tags.get(NAME)
        if given is not None:
            name = run_name(found.data.params, differing, title_in(given))
            rename(client, found, given, name)


def rename(client: Any, found: Any, given: str, name: str) -> None:
    """Give a run of MLflow another name, unless a user has changed the name that Shoal gave.

    Args:
        client: an MlflowClient.
        found: the run.
        given: the name that Shoal gave before.
        name: the name that Shoal gives now.
    """
    # After a kill the run may have the new name, and not yet the tag.
    if name != given and found.info.run_name in (given, name):
        client.update_run(found.info.run_id, name=name)
        client.set_tag(found.info.run_id, NAME, name)


def pixels(column: str) -> int:
    """Return the width of a column that shows its whole heading, and of a score all digits.

    >>> pixels("tags.`verdict`"), pixels("metrics.`score/acc`"), pixels("metrics.`score/neighbour_agreement`")
    (90, 158, 207)
    """
    kind, _, heading = column.partition(".")
    characters = len(heading.strip("`"))
    if kind == "metrics":
        characters = max(characters, SCORE_CHARACTERS)
    return max(COLUMN_PIXELS, CHARACTER_PIXELS * characters + MARGIN_PIXELS)


def view(distinctions: Distinctions) -> str:
    """Return the value of `VIEW_TAG`: columns for the verdict, scores, settings that differ, and those of names."""
    settings = dict.fromkeys((*distinctions.settings[:MAX_COLUMNS], *ALWAYS_SHOWN))
    columns = [
        f"tags.`{VERDICT}`",
        *([f"tags.`{NIGHT_DECISION}`"] if distinctions.nights else []),
        *(f"metrics.`{metric_name(name)}`" for name in distinctions.scores),
        *(f"params.`{allowed_name(key)}`" for key in settings),
        "attributes.`Dataset`",
    ]
    widths = {**{column: pixels(column) for column in columns[:-1]}, **WIDE_COLUMNS}
    state = {
        "selectedColumns": columns,
        "columnOrder": [*WIDE_COLUMNS, *columns],
        "columnWidths": widths,
        "useGroupedValuesInCharts": True,
    }
    return json.dumps({"name": "scores and settings", "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)})
