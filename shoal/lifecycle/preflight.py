"""Refusals before any work: settings that do not fit the data set or the method, before data are prepared."""

from __future__ import annotations

from importlib.util import find_spec

from shoal.data.sets.prepare import is_built_in, prepare, resolve, store_folder
from shoal.data.sets.prepared import DataSpec, open_prepared
from shoal.engine.messages.fixed_point import FEWEST_SUMMED
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings, SettingsError
from shoal.methods.contract.base import Method
from shoal.methods.contract.context import Context, MethodError
from shoal.methods.registry import METHODS
from shoal.methods.training.steps import GradientMethod

ENOUGH_ROUNDS = 20
"""With so many rounds every method has clusters: no encoder is loaded to count them."""


def check_method(settings: Settings) -> None:
    """Refuse settings that the method will not take, as far as the data set is known before it is prepared.

    Args:
        settings: of the run.

    Raises:
        DataError: no such data set, or an option that it does not have.
        MethodError: the method does not work on such data, or its settings do not go together.
        SettingsError: other settings do not go together with the method's.
    """
    spec = known_spec(settings)
    if settings.chooses_method:
        check_open_method(settings, spec)
        return
    check_privacy(settings)
    check_buffer(settings)
    check_choice(settings)
    check_validation(settings)
    context = Context(
        spec,
        settings.largest_model,
        settings.local,
        settings.augment,
        settings.seed,
        settings.rounds,
        settings.participation.fraction,
        aggregation=settings.aggregation,
        graphs=settings.workers.graphs,
        clip=settings.privacy.clip,
    )
    method = METHODS[settings.method.name](settings.method, context)
    check_graphs(method)
    if spec.shape:
        check_rounds(settings, method)


def check_clusters(settings: Settings, samples: int) -> None:
    """Refuse a number of clusters that leaves fewer than two samples for each.

    Args:
        settings: of the run.
        samples: training samples of all clients.

    Raises:
        SettingsError: says how many samples there are.
    """
    clusters = settings.model.clusters
    if isinstance(clusters, int) and 2 * clusters > samples:
        raise SettingsError(
            f"model.clusters is {clusters:,}, and the clients have {samples:,} training samples, which are fewer than "
            f"two for each cluster: set model.clusters to {max(samples // 2, 2):,} or less"
        )


def check_sums(settings: Settings, clients: int) -> None:
    """Refuse sums over fewer clients than hide each other.

    Raises:
        SettingsError: says how many clients there are.
    """
    if settings.privacy.sums != "plain" and clients < FEWEST_SUMMED:
        raise SettingsError(
            f"privacy.sums is {settings.privacy.sums}, which needs {FEWEST_SUMMED} clients, and there are {clients}: "
            "set privacy.sums=plain, or add clients (at sites: another site)"
        )


def check_open_method(settings: Settings, spec: DataSpec) -> None:
    """Refuse settings that no method, or only some, can take, where the method is still to be chosen.

    Raises:
        MethodError: says what to set.
    """
    if spec.kind != "text":
        _ = Context(spec, settings.largest_model).clusters  # without a number nothing can be clustered
    wanted = {
        "privacy.clip": settings.privacy.clip is not None,
        "participation.buffer": settings.participation.buffer is not None,
        "workers.graphs=on": settings.workers.graphs == "on",
    }
    for name, used in wanted.items():
        if used:
            raise MethodError(f"{name} is for some methods only, and method.name is auto: set method.name to one")


def check_rounds(settings: Settings, method: Method) -> None:
    """Refuse so few rounds that no sample would have a cluster.

    Raises:
        SettingsError: says how many are needed.
    """
    if settings.rounds >= ENOUGH_ROUNDS:
        return
    first = method.first_round_with_clusters
    if settings.rounds < first:
        raise SettingsError(
            f"rounds is {settings.rounds}, and with these settings method {method.name!r} has its first clusters after "
            f"round {first}: set rounds to {first} or more"
        )


def check_graphs(method: Method) -> None:
    """Refuse CUDA graphs where local work is not made of steps that can be captured.

    Raises:
        MethodError: local work has no such steps.
    """
    captured = isinstance(method, GradientMethod) and method.stackable
    if method.context.graphs == "on" and not captured:
        raise MethodError(
            "workers.graphs is for local work that is gradient steps on batches of one shape: method "
            f"{method.name!r} has none on {method.context.spec.kind} data that can be captured; set workers.graphs=off"
        )


def check_privacy(settings: Settings) -> None:
    """Refuse private updates where a method sends more than the weights that are averaged, or nobody accounts them.

    Raises:
        MethodError: names the methods that have private updates, or what to install.
    """
    if settings.privacy.clip is None:
        return
    if find_spec("opacus") is None:
        raise MethodError("privacy.clip needs the package opacus, which accounts epsilon: pip install opacus")
    if not METHODS[settings.method.name].totals:
        check_averages(settings.method.name, "privacy.clip", "and nothing else, or sums of rows (fedkmeans, fedgmm)")
        if settings.privacy.unit == "row":
            raise MethodError("privacy.unit=row is for fedkmeans and fedgmm, which sum rows: set privacy.unit=client")
        return
    if getattr(settings.method, "sites", "") == "centre":
        raise MethodError(
            "method.sites=centre moves all rows of a client by one, which noise does not cover: set ignore"
        )
    if not settings.aggregation.is_mean:
        raise MethodError("privacy.noise hides what robust rules compare: set aggregation.rule=mean")


def check_buffer(settings: Settings) -> None:
    """Refuse asynchronous rounds where an answer cannot be applied to a newer state than it began from.

    Raises:
        MethodError: names the methods that have them, or the setting that does not fit.
    """
    participation = settings.participation
    if participation.buffer is None:
        return
    check_averages(settings.method.name, "participation.buffer", "in every round the same")
    if participation.staleness and settings.privacy.noise:
        # Noise that is weighed down by its age hides less in the mean than is accounted.
        raise MethodError(
            "privacy.noise is accounted for answers that all count the same: with participation.buffer set "
            "participation.staleness to 0"
        )


def check_averages(method: str, setting: str, what: str) -> None:
    """Refuse a setting with a method whose clients do not send the weights that are averaged.

    Raises:
        MethodError: names the methods that fit.
    """
    if not METHODS[method].averages:
        fit = sorted(name for name, kind in METHODS.items() if kind.averages)
        raise MethodError(
            f"{setting} is for methods whose clients send the weights that are averaged, {what}: {', '.join(fit)}; "
            f"method {method!r} is none of them"
        )


def check_choice(settings: Settings) -> None:
    """Refuse `model.clusters: auto` where the method looks for no clusters, or where it would tell too much.

    Raises:
        MethodError: says what to set.
    """
    if not settings.chooses_clusters:
        return
    kind = METHODS[settings.method.name]
    if kind.learns_from_labels:
        raise MethodError(
            f"model.clusters is auto, and method {settings.method.name!r} learns from labels and looks for no number "
            "of clusters: leave model.clusters out"
        )
    if settings.privacy.clip is not None:
        raise MethodError(
            "model.clusters is auto, and what clients send to choose the number is not covered by privacy.clip: set "
            "model.clusters to a number"
        )


def check_validation(settings: Settings) -> None:
    """Refuse a partition without validation samples where the method judges each client on its own.

    Raises:
        MethodError: says what to set.
    """
    if METHODS[settings.method.name].learns_from_labels and not settings.partition.validation:
        raise MethodError(
            f"method {settings.method.name!r} judges each client on validation samples of its own: "
            "set partition.validation, say 0.2"
        )


def known_spec(settings: Settings) -> DataSpec:
    """Return what is known of a run's data set before it is prepared: all of it where it was prepared before.

    For a built-in set that was not prepared, only its kind is known, and that it has labels.

    Raises:
        DataError: no such data set, or an option that it does not have.
    """
    name = settings.data.name
    options = settings.data.options
    store = places.store()
    if not is_built_in(name):
        return prepare(name, store, options=options).spec  # it is prepared, or unknown
    data_set, _, full_name = resolve(name, options)
    folder = store_folder(store, full_name)
    if (folder / "manifest.json").exists():
        return open_prepared(folder).spec
    return DataSpec(full_name, data_set.kind, (), 1, 1, 1)
