"""The sections that every run has in its settings, and the section that a settings dataclass becomes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Literal, Union, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from shoal.core.setting import BOUNDS, NameForms
from shoal.engine.settings.addresses import ADDRESS_SCHEMA, check_address
from shoal.engine.settings.path_names import check_path_part
from shoal.engine.settings.wrong_settings import NAME_FORM

PathPart = Annotated[str, AfterValidator(check_path_part)]
"""A text that becomes one part of a path, and is checked for that."""
Address = Annotated[str | None, AfterValidator(check_address), Field(json_schema_extra=ADDRESS_SCHEMA)]
"""An address that holds no password or token."""


class Section(BaseModel):
    """A part of the settings: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def section(source: type, tag: tuple[str, str] | None = None, *, optional: bool = False) -> type[Section]:
    """Return the pydantic model of a settings dataclass.

    Args:
        source: a dataclass whose fields were made with `shoal.core.setting.setting`.
        tag: (key, value) that names this member of a tagged union.
        optional: every field may be left out (None), until its default is known.
    """
    fields: dict[str, Any] = {}
    config: dict[str, Any] = {}
    if tag is not None:
        key, name = tag
        fields[key] = (Literal[name], Field(default=name))
        config["title"] = name  # Prefect's form lists the members by their titles
    hints = get_type_hints(source, include_extras=True)
    for item in dataclasses.fields(source):
        fields[item.name] = _field(item, hints[item.name], optional=optional)
    return create_model(source.__name__, __base__=Section, __doc__=source.__doc__, __cls_kwargs__=config, **fields)


def tagged_union(key: str, members: Iterable[type[Section]]) -> Any:
    """Return the type of a section that is one of several, of which the value of a key names one.

    Its schema is `anyOf`, the smallest member first: Prefect's form offers a list of members, and of a given value it
    shows the first one that has most of its keys.

    Args:
        key: the tag.
        members: made by `section` with that tag.
    """
    ordered = sorted(members, key=lambda member: len(member.model_fields))

    def offer_a_list(schema: dict[str, Any]) -> None:
        schema["anyOf"] = schema.pop("oneOf")

    found: Any = Union[tuple(ordered)]  # noqa: UP007 (the type is a value)
    return Annotated[found, Field(discriminator=key, json_schema_extra=offer_a_list)]


def _field(item: dataclasses.Field[Any], hint: Any, *, optional: bool) -> tuple[Any, Any]:
    """Return the type and the `Field` with which pydantic declares one setting."""
    bounds = {name: item.metadata[name] for name in BOUNDS if name in item.metadata}
    choices = item.metadata.get("choices")
    default: dict[str, Any] = {"default": item.default}
    if dataclasses.is_dataclass(hint):
        hint = section(hint)  # type: ignore[arg-type]
        default = {"default_factory": hint}
    elif choices:
        hint = Literal[choices]
        if forms := item.metadata.get("forms"):
            schema: Any = {"pattern": forms.pattern}
            named = Annotated[str, AfterValidator(partial(_check_form, forms)), Field(json_schema_extra=schema)]
            hint = Union[hint, named]  # noqa: UP007 (the hint is a value)
    elif item.default_factory is not dataclasses.MISSING:
        default = {"default_factory": item.default_factory}
    if optional:
        hint = Union[hint, None]  # noqa: UP007 (the hint is a value)
        default = {"default": None}
    return hint, Field(description=item.metadata.get("doc"), **bounds, **default)


def _check_form(forms: NameForms, value: str) -> str:
    """Return a name unchanged if it has one of the forms; refuse any other."""
    if re.search(forms.pattern, value) is None:
        raise PydanticCustomError(NAME_FORM, "Input should be {words}", {"words": forms.words})
    return value


def to_dataclass(source: type, values: dict[str, Any]) -> Any:
    """Return a settings dataclass with the values of its section; sections within it become dataclasses too."""
    hints = get_type_hints(source)
    nested = {
        name: to_dataclass(hints[name], value)
        for name, value in values.items()
        if dataclasses.is_dataclass(hints.get(name))
    }
    return source(**{**values, **nested})


def model_section(source: type) -> type[Section]:
    """Return the section of a run's network; its `clusters` may be the word auto until a number is chosen."""
    base = section(source, optional=True)
    description = f"{base.model_fields['clusters'].description}; auto: chosen before the run, without labels (`choose`)"
    hint = Union[int, Literal["auto"], None]  # noqa: UP007 (the hint is a value)
    fields: dict[str, Any] = {"clusters": (hint, Field(None, description=description))}
    checks: dict[str, Any] = {"possible": field_validator("clusters")(_possible_clusters)}
    return create_model(source.__name__, __base__=base, __doc__=source.__doc__, __validators__=checks, **fields)


def _possible_clusters(value: int | str | None) -> int | str | None:
    if isinstance(value, int) and value < 0:
        raise PydanticCustomError("greater_than_equal", "Input should be greater than or equal to 0")
    if value == 1:
        raise PydanticCustomError(
            "one_cluster", "one cluster would hold every sample: set 2 or more, or auto, which chooses the number"
        )
    return value


def local_section(source: type) -> type[Section]:
    """Return the section of local training, whose budget is in epochs or in steps."""
    base = section(source, optional=True)
    checks: dict[str, Any] = {"one_budget": model_validator(mode="after")(_one_budget)}
    return create_model(source.__name__, __base__=base, __doc__=source.__doc__, __validators__=checks)


def _one_budget(values: Any) -> Any:
    if values.steps and values.epochs is not None:
        raise ValueError("local.steps and local.epochs both set how long a client trains in a round: leave one out")
    return values


def on_or_off(value: Any) -> Any:
    """Return on for true and off for false, as which other YAML readers read these words."""
    if isinstance(value, bool):
        return {True: "on", False: "off"}[value]
    return value


class AutoMethodSection(Section):
    """A method that is chosen before the run, by kind and size of the data; see docs/which_method.md.

    Other keys are settings of the method that will be chosen, and are checked then.
    """

    model_config = ConfigDict(extra="allow", frozen=True, title="auto")

    name: Literal["auto"] = "auto"


class ChooseSection(Section):
    """How a run chooses the number of clusters where `model.clusters` is auto: see docs/number-of-clusters.md."""

    min_clusters: int = Field(2, ge=2, description="smallest number of clusters to try")
    max_clusters: int = Field(15, ge=3, le=200, description="largest number of clusters to try")
    features: Literal["auto", "fedsimclr", "samples"] = Field(
        "auto",
        description="what to cluster: fedsimclr: features of an encoder that the clients train first; samples: the "
        "samples themselves; auto: fedsimclr for a method that trains on images, the features of model.encoder for one "
        "that clusters features of images, samples for any other",
    )
    rounds: int | None = Field(
        None, ge=1, description="communication rounds that train that encoder; none: as many as the run has"
    )

    @model_validator(mode="after")
    def _fit_together(self) -> ChooseSection:
        if self.min_clusters >= self.max_clusters:
            raise ValueError(
                f"choose.min_clusters is {self.min_clusters} and choose.max_clusters is {self.max_clusters}: "
                "set max_clusters above min_clusters"
            )
        return self


class DataSection(Section):
    """The data set, and how much of it to use."""

    name: PathPart = Field(
        "digits", description="name of a built-in data set (shoal data list), or of one that shoal data add has added"
    )
    limit: int | None = Field(
        None, ge=2, description="number of training samples to use, drawn at random with the seed; none: all of them"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="options of a synthetic data set, such as clusters and samples"
    )


class ParticipationSection(Section):
    """Which clients take part in a round, and how many must succeed."""

    fraction: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in each round")
    minimum: float = Field(
        0.5, ge=0, le=1, description="share of the participating clients that must succeed; with fewer the run stops"
    )
    retries: int = Field(
        1, ge=0, description="how often to retrain a client that failed before the round continues without it"
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="simulated dropout: probability that a participating client does not answer, drawn for each client "
        "and round; at least one client always answers",
    )
    buffer: int | None = Field(
        None,
        ge=1,
        description="asynchronous rounds (FedBuff): number of answers that end a round while other clients continue; "
        "`fraction` is then the share of the clients that train at the same time; none: a round waits for all clients",
    )
    staleness: float = Field(
        0.5,
        ge=0,
        description="with participation.buffer: exponent a of the weight (1 + t)^-a of an answer that began from a "
        "state t rounds old; 0: all answers have the same weight",
    )


class PrivacySection(Section):
    """Differential privacy of the clients' updates: see docs/privacy.md."""

    clip: float | None = Field(
        None,
        gt=0,
        description="largest L2 norm of the difference between the weights that a client receives and those that it "
        "sends; longer differences are scaled down to it; none: clients send their updates unchanged",
    )
    noise: float = Field(
        0.0,
        ge=0,
        description="standard deviation of the Gaussian noise that each client adds to every value of its clipped "
        "difference, as a multiple of privacy.clip; 0: no noise",
    )
    noise_source: Literal["secret", "seeded"] = Field(
        "secret",
        description="source of the noise: secret: the operating system's generator; seeded: the run's public seed, for "
        "tests, which protects nothing",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="delta for which epsilon is computed")
    epsilon: float | None = Field(
        None,
        gt=0,
        description="privacy budget of the data set, for all private runs on it together: a run ends before the round "
        "that would exceed it; none: no budget",
    )
    budget: Literal["sent", "mean"] = Field(
        "sent",
        description="what the budget bounds: sent: what all messages of one client reveal; mean: what the server "
        "states reveal to a reader who sees nothing else",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> PrivacySection:
        if self.noise and self.clip is None:
            raise ValueError("privacy.noise is a multiple of privacy.clip, which is not set: set privacy.clip too")
        if self.epsilon is not None and not self.noise:
            raise ValueError("the budget privacy.epsilon needs noise: set privacy.noise and privacy.clip")
        if self.epsilon is not None and self.noise_source == "seeded":
            raise ValueError("the budget privacy.epsilon needs secret noise: set privacy.noise_source=secret")
        return self

    @property
    def secret(self) -> bool:
        """Whether clients add noise to their updates that nobody can subtract."""
        return self.clip is not None and self.noise > 0 and self.noise_source == "secret"


class EvaluateSection(Section):
    """When and how the server state is evaluated."""

    every: int = Field(
        1, ge=1, description="number of rounds between two evaluations; the last round is always evaluated"
    )
    batch: int = Field(512, ge=1, description="batch size of forward passes in evaluation")
    recalibrate: int = Field(
        4096,
        ge=0,
        description="number of training samples, drawn from all clients, from which BatchNorm's statistics are "
        "computed before an averaged network is evaluated or served; 0: use the averaged statistics",
    )
    probe_epochs: int = Field(
        0,
        ge=0,
        description="number of epochs of the Adam probe that papers train (200), reported as probe_sgd beside the "
        "converged probe in the last evaluation of methods that judge features; 0: no such probe",
    )
    finetune: bool = Field(
        False,
        description="fine-tune the encoder with 1 % and 10 % of the labels in the last evaluation of ssd, fedsimclr, "
        "fedsimclr_kmeans, fedbyol and fedema",
    )


class CheckpointSection(Section):
    """What a run's folder keeps."""

    keep: int = Field(
        2, ge=1, description="number of newest rounds whose server state is kept; metrics are kept of all"
    )


class WorkersSection(Section):
    """Where clients are trained, and how."""

    runner: Literal["local", "dask"] = Field(
        "local",
        description="where clients are trained: local: processes of this machine; dask: the workers of a Dask cluster",
    )
    address: Address = Field(
        None,
        description="dask: address of the scheduler of a running cluster, such as tcp://host:8786; none: the run "
        "starts a cluster of processes of this machine",
    )
    slots: int | Literal["auto"] = Field(
        "auto",
        description="number of worker processes; auto: one for each CPU core, or up to 5 for each GPU, as its free "
        "memory and the CPU cores allow, or all workers of the running cluster",
    )
    batched: int = Field(
        1,
        ge=1,
        description="number of clients to train in one batched computation, if the method can: for small networks "
        "on a GPU",
    )
    graphs: Annotated[Literal["auto", "off", "on"], BeforeValidator(on_or_off)] = Field(
        "auto",
        description="capture local gradient steps as CUDA graphs and replay them, with the same bits; auto: on GPUs, "
        "for steps that can be captured and repeat often enough; on: a step that cannot be captured is an error",
    )
    remote_files: Address = Field(
        None,
        description="dask: fsspec URL, such as s3://bucket/shoal, through which files reach workers that "
        "share no file system with this machine; write passwords as ${NAME} of an environment variable",
    )
    timeout: Annotated[float, Field(gt=0)] | Literal["auto"] | None = Field(
        "auto",
        description="minutes in which a worker must finish a client, a step of an optimiser or an evaluation, or else "
        "it counts as hung and is replaced; auto: 30 on CPUs, none on GPUs; null: none",
    )
    precision: Literal["auto", "fp32", "tf32", "bf16"] = Field(
        "auto",
        description="floating-point precision; tf32: float32 with matrix products and convolutions in TF32 on a GPU; "
        "auto: bf16 on GPUs that have it, else fp32",
    )
    deterministic: bool = Field(
        False,
        description="use only algorithms that repeat their results bit by bit on GPUs of one kind; slower on a GPU",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device of the workers; auto: a GPU if this machine has one"
    )

    @property
    def elsewhere(self) -> bool:
        """Whether a running cluster trains the clients: its devices may differ from this machine's."""
        return self.runner != "local" and self.address is not None

    @model_validator(mode="after")
    def _fit_together(self) -> WorkersSection:
        if self.remote_files and self.runner == "local":
            raise ValueError("workers.remote_files only applies to workers on other hosts: set workers.runner to dask")
        if self.graphs == "on" and self.batched > 1:
            raise ValueError("workers.graphs=on and workers.batched exclude each other: set only one of them")
        return self


class TrackingSection(Section):
    """Where results are shown besides the run's folder."""

    mlflow: bool = Field(True, description="log the run to MLflow")
    uri: Address = Field(
        None,
        description="address of the MLflow tracking server; none: MLFLOW_TRACKING_URI, else the embedded store; write "
        "passwords as ${NAME} of an environment variable",
    )
    experiment: PathPart = Field("shoal", description="name of the MLflow experiment")
    checkpoints: Literal["final", "all", "none"] = Field(
        "final", description="server states to log to MLflow, each as a model whose step is its round"
    )
    clients: bool = Field(
        True,
        description="log to MLflow what describes single clients: losses, counts, bytes, names, clusters of their "
        "samples, figures and the report; false: log only what describes all clients together",
    )
    model: bool = Field(True, description="log the final model as an MLflow pyfunc")
    register_as: str = Field(
        "auto",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="name of the final model in MLflow's registry; auto: shoal-METHOD-DATA; none: it is not registered",
    )
    also: list[Literal["tensorboard", "wandb"]] = Field(
        default_factory=list, description="further logs of each round's numbers, beside MLflow's"
    )
    prefect: Annotated[Literal["auto", "on", "off"], BeforeValidator(on_or_off)] = Field(
        "auto", description="execute the run as a Prefect flow; auto: if a Prefect server answers"
    )
