"""Sections of the settings: those that are the same for every run, and how a settings dataclass becomes one."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Union, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, create_model, field_validator, model_validator
from pydantic_core import PydanticCustomError

from shoal.core.setting import BOUNDS
from shoal.engine.settings.addresses import SCHEMA, check_address
from shoal.engine.settings.path_names import check_path_part


class Section(BaseModel):
    """A part of the settings: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def section(source: type, tag: tuple[str, str] | None = None, *, optional: bool = False) -> type[Section]:
    """The pydantic model of a settings dataclass.

    Args:
        source: a dataclass whose fields were made with `shoal.core.setting.setting`.
        tag: (key, value) that names this member of a tagged union.
        optional: every field may be left out (None), to be filled from defaults that are known later.
    """
    fields: dict[str, Any] = {}
    if tag is not None:
        fields[tag[0]] = (Literal[tag[1]], Field(default=tag[1]))
    hints = get_type_hints(source, include_extras=True)
    for item in dataclasses.fields(source):
        bounds = {name: item.metadata[name] for name in BOUNDS if name in item.metadata}
        default: dict[str, Any]
        if optional:
            default = {"default": None}
        elif item.default_factory is not dataclasses.MISSING:
            default = {"default_factory": item.default_factory}
        else:
            default = {"default": item.default}
        choices = item.metadata.get("choices")
        hint = Literal[choices] if choices else hints[item.name]
        if dataclasses.is_dataclass(hint):
            inner = section(hint)  # type: ignore[arg-type]
            hint = inner
            default = {"default_factory": inner}
        fields[item.name] = (
            Union[hint, None] if optional else hint,  # noqa: UP007 (the hint is a value)
            Field(description=item.metadata.get("doc"), **bounds, **default),
        )
    return create_model(source.__name__, __base__=Section, __doc__=source.__doc__, **fields)


def as_dataclass(source: type, values: dict[str, Any]) -> Any:
    """Return a settings dataclass made of the values of its section, those inside it included."""
    hints = get_type_hints(source)
    inner = {name: hints[name] for name, value in values.items() if dataclasses.is_dataclass(hints.get(name))}
    made = {name: as_dataclass(kind, values[name]) for name, kind in inner.items()}
    return source(**{**values, **made})


def model_section(source: type) -> type[Section]:
    """The section of a run's network: as `section`, and `clusters` may be the word auto until a number is chosen."""
    whole = section(source, optional=True)
    about = whole.model_fields["clusters"].description
    said = Field(None, description=f"{about}; auto: chosen before the run, without labels (`choose`)")
    fields: dict[str, Any] = {"clusters": (Union[int, Literal["auto"], None], said)}  # noqa: UP007 (as above)
    checks: dict[str, Any] = {"not_negative": field_validator("clusters")(_not_negative)}
    return create_model(source.__name__, __base__=whole, __doc__=source.__doc__, __validators__=checks, **fields)


def _not_negative(value: int | str | None) -> int | str | None:
    if isinstance(value, int) and value < 0:
        raise PydanticCustomError("greater_than_equal", "Input should be greater than or equal to 0")
    return value


def on_or_off(value: Any) -> Any:
    """The word for a switch that came as true or false, as from the YAML of other programs or from Python."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class ChooseSection(Section):
    """How the number of clusters is chosen where `model.clusters` is auto: see docs/number-of-clusters.md."""

    min_clusters: int = Field(2, ge=2, description="smallest number of clusters that is tried")
    max_clusters: int = Field(15, ge=3, le=200, description="largest number of clusters that is tried")
    repeats: int = Field(
        5, ge=1, description="pairs of halves of the clients' samples whose clusterings are compared for each number"
    )
    features: Literal["auto", "fedsimclr", "samples"] = Field(
        "auto",
        description="among what clusters are sought: fedsimclr: the features of an encoder that the clients train "
        "first; samples: the samples as they are; auto: fedsimclr for a method that trains on images, else samples",
    )
    rounds: int | None = Field(
        None, ge=1, description="communication rounds in which that encoder is trained; none: as many as the run's"
    )

    @model_validator(mode="after")
    def _in_order(self) -> ChooseSection:
        if self.min_clusters >= self.max_clusters:
            raise ValueError(
                f"choose.min_clusters is {self.min_clusters} and choose.max_clusters is {self.max_clusters}: "
                "set max_clusters above min_clusters"
            )
        return self


class DataSection(Section):
    """Which data set, and how much of it."""

    name: str = Field(
        "digits", description="name of a built-in data set (shoal data list), or of one added with shoal data add"
    )
    limit: int | None = Field(
        None, ge=2, description="number of training samples to keep, drawn at random by the seed; none: all of them"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="options of a synthetic data set, such as clusters and samples"
    )

    @field_validator("name")
    @classmethod
    def _no_path(cls, value: str) -> str:
        return check_path_part(value)


class ParticipationSection(Section):
    """Who takes part in a round, and how many must come through."""

    fraction: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in each round")
    minimum: float = Field(
        0.5, ge=0, le=1, description="share of the participating clients that must succeed for a round to count"
    )
    retries: int = Field(
        1, ge=0, description="number of times that a failed client is tried again before the round goes on without it"
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="simulated dropout: probability with which a client that was chosen for a round does not answer, "
        "drawn for each client and round; one client always answers",
    )
    buffer: int | None = Field(
        None,
        ge=1,
        description="number of answers that make a round, while other clients go on (asynchronous rounds, FedBuff): "
        "`fraction` is then the share of the clients that are at work at once; none: a round waits for all its clients",
    )
    staleness: float = Field(
        0.5,
        ge=0,
        description="exponent a of the weight (1 + t)^-a of an answer that began from a state t rounds old, with "
        "participation.buffer; 0: its age does not count",
    )
    speed_spread: float = Field(
        0.0,
        ge=0,
        description="simulated time: standard deviation of the logarithm of a client's time for the same work, "
        "always the same; 0, without a buffer: no time is simulated",
    )
    refusals: int = Field(
        3,
        ge=0,
        description="number of rounds in which a client's message is refused before it is quarantined, that is, not "
        "asked again in this run; 0: it is always asked again",
    )
    max_update_ratio: float = Field(
        100.0,
        ge=0,
        description="a client is refused that changes the model by more than this multiple of the median of the round, "
        "and by more than the model's own norm; more samples may change it more, in proportion; 0: no such rule",
    )
    max_abs_value: float = Field(
        1e12, gt=0, description="a client is refused whose tensors hold values larger than this, either way"
    )
    max_memory_mb: float = Field(
        4096.0, gt=0, description="a client is refused that keeps more private memory than so many megabytes"
    )


class PrivacySection(Section):
    """Differential privacy of the clients' updates: see docs/privacy.md."""

    clip: float | None = Field(
        None,
        gt=0,
        description="largest L2 norm of the difference between the weights that a client sends and those that it was "
        "sent; longer ones are scaled down; none: updates leave as they are",
    )
    noise: float = Field(
        0.0,
        ge=0,
        description="standard deviation of the Gaussian noise that each client adds to every value of its clipped "
        "difference, as a multiple of privacy.clip",
    )
    noise_source: Literal["secret", "seeded"] = Field(
        "secret", description="secret: noise of the operating system's generator; seeded, for tests: it hides nothing"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="delta at which epsilon is accounted")
    epsilon: float | None = Field(
        None,
        gt=0,
        description="budget of the data set, over all private runs on it: a run ends before the round that would "
        "spend more; none: no budget",
    )
    budget: Literal["sent", "mean"] = Field(
        "sent",
        description="what the budget is of: sent: all messages of one client; mean: the server states, for those who "
        "see these alone",
    )

    @model_validator(mode="after")
    def _together(self) -> PrivacySection:
        if self.noise and self.clip is None:
            raise ValueError("privacy.noise is a multiple of privacy.clip: set privacy.clip too")
        if self.epsilon is not None and not self.noise:
            raise ValueError("a budget of privacy.epsilon needs noise: set privacy.noise and privacy.clip")
        if self.epsilon is not None and self.noise_source == "seeded":
            raise ValueError("a budget of privacy.epsilon needs secret noise: set privacy.noise_source=secret")
        return self

    @property
    def secret(self) -> bool:
        """Whether updates leave with noise that nobody can subtract."""
        return self.clip is not None and self.noise > 0 and self.noise_source == "secret"


class EvaluateSection(Section):
    """When the server state is judged."""

    every: int = Field(
        1, ge=1, description="number of rounds between two evaluations; the last round is always evaluated"
    )
    batch: int = Field(512, ge=1, description="batch size of a forward pass in evaluation")
    recalibrate: int = Field(
        4096,
        ge=0,
        description="number of training samples, drawn from all clients, on which BatchNorm's statistics are found "
        "anew before an averaged network is judged or served; 0: it is judged with the averaged statistics",
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
    """What a run folder keeps."""

    keep: int = Field(2, ge=1, description="number of rounds whose server state is kept; the metrics of all rounds are")


class WorkersSection(Section):
    """Where clients are trained."""

    runner: Literal["local", "dask"] = Field(
        "local",
        description="where clients are trained: local: processes on this machine; dask: a running Dask cluster, or one "
        "that is started for the run",
    )
    address: str | None = Field(
        None,
        description="dask: address of the scheduler of a running cluster, such as tcp://host:8786",
        json_schema_extra=SCHEMA,
    )
    listen: str = Field(
        "127.0.0.1",
        pattern=r"^[A-Za-z0-9.:-]+$",
        description="dask: address on which a cluster that is started for the run listens; any other than "
        "127.0.0.1 lets other hosts run code here",
    )
    slots: int | Literal["auto"] = Field(
        "auto",
        description="number of worker processes; auto: one for each CPU core, `per_gpu` for each GPU, or all workers "
        "of the cluster",
    )
    per_gpu: int | Literal["auto"] = Field(
        "auto",
        description="number of worker processes that share one GPU; auto: as many as its free memory and the CPU cores "
        "allow, at most 5",
    )
    batched: int = Field(
        1,
        ge=1,
        description="number of clients trained in one batched computation, where the method can: for small networks on "
        "a GPU",
    )
    summed: int = Field(
        1,
        ge=1,
        description="number of clients whose messages their worker sums, so that the server gets one message for all "
        "of them, where it averages: for large models, and for hosts without a shared file system",
    )
    compile: Literal["off", "default"] = Field(
        "off", description="mode of torch.compile for the networks; off: networks are not compiled"
    )
    graphs: Literal["auto", "off", "on"] = Field(
        "auto",
        description="local gradient steps as CUDA graphs, captured once and replayed, to the same bits; auto: on GPUs, "
        "where a step can be captured and comes often enough; on: a step that cannot be captured is an error",
    )
    resources: dict[str, float] = Field(
        {}, description="dask: amount of each resource declared by the workers that one cohort of clients takes"
    )
    remote_files: str | None = Field(
        None,
        description="dask: fsspec URL, such as s3://bucket/shoal, through which files reach workers that "
        "share no file system with this machine; passwords as ${NAME} of an environment variable",
        json_schema_extra=SCHEMA,
    )
    straggler_factor: float = Field(
        0.0,
        ge=0,
        description="factor over its expected time after which a cohort is started again on a free worker; 0: never",
    )
    deadline: float = Field(
        10.0,
        ge=0,
        description="factor over the longest time that a client took so far, in this run and this kind of round, after "
        "which its worker is ended and its work done elsewhere; 0: never",
    )
    min_deadline: float = Field(
        300.0,
        gt=0,
        description="seconds that any work has before `deadline` counts; a worker that uses no core for so long counts "
        "as stopped",
    )
    first_deadline: float = Field(
        21600.0,
        gt=0,
        description="seconds that a client has where nobody's work of that kind was measured yet; also the last "
        "evaluation",
    )
    no_worker_timeout: float = Field(
        45.0,
        gt=0,
        description="dask: seconds for which the cluster may have no worker before the run stops, resumable; more "
        "where a queue starts them as they are needed",
    )
    precision: Literal["auto", "fp32", "tf32", "bf16"] = Field(
        "auto",
        description="floating-point precision; tf32: float32 whose products and convolutions a GPU takes in TF32; "
        "auto: bf16 on GPUs that have it, else fp32",
    )
    deterministic: bool = Field(
        False,
        description="take only algorithms that repeat to the bit, for the same bits on GPUs of one kind; slower there",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device of the workers; auto: a GPU where there is one"
    )

    @property
    def elsewhere(self) -> bool:
        """Whether clients are trained on a running cluster, whatever devices its workers have."""
        return self.runner != "local" and self.address is not None

    @field_validator("graphs", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return on_or_off(value)

    @field_validator("per_gpu")
    @classmethod
    def _at_least_one(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError(f"given {value}; at least 1 is needed")
        return value

    @field_validator("address", "remote_files")
    @classmethod
    def _no_secret(cls, value: str | None, info: ValidationInfo) -> str | None:
        return check_address(value, f"workers.{info.field_name}")

    @model_validator(mode="after")
    def _hosts(self) -> WorkersSection:
        if self.remote_files and self.runner == "local":
            raise ValueError("workers.remote_files is for workers on other hosts: set workers.runner to dask")
        if self.summed > 1 and self.summed % self.batched:
            raise ValueError("workers.summed must be a multiple of workers.batched, or 1")
        if self.compile != "off" and self.batched > 1:
            raise ValueError("workers.compile and workers.batched do not go together: set one of them")
        if self.graphs == "on" and (self.compile != "off" or self.batched > 1):
            other = "compile" if self.compile != "off" else "batched"
            raise ValueError(f"workers.graphs and workers.{other} do not go together: set one of them")
        return self


class TrackingSection(Section):
    """Where results can be seen besides the run folder."""

    mlflow: bool = Field(True, description="log the run to MLflow")
    uri: str | None = Field(
        None,
        description="MLflow tracking server; none: MLFLOW_TRACKING_URI, else the embedded store; passwords as ${NAME} "
        "of an environment variable",
        json_schema_extra=SCHEMA,
    )
    experiment: str = Field("shoal", description="name of the MLflow experiment")
    checkpoints: Literal["final", "all", "none"] = Field(
        "final", description="server states that are logged to MLflow, each as a model with its round as step"
    )
    clients: bool = Field(
        True,
        description="log what is of single clients to MLflow: their losses, counts, bytes and names, clusters of their "
        "samples, figures and the report; false: only what is of all together",
    )
    model: bool = Field(True, description="log the final model as an MLflow pyfunc")
    register_as: str = Field(
        "auto",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="name of the final model in MLflow's registry; auto: shoal-METHOD-DATA; none: not registered",
    )
    champion: bool = Field(False, description="move the alias champion to this run's model; else it stays where it is")
    system: bool = Field(True, description="log system metrics of this machine to MLflow")
    prefect: Literal["auto", "on", "off"] = Field(
        "auto", description="run as a Prefect flow; auto: where a Prefect server answers"
    )

    @field_validator("uri")
    @classmethod
    def _no_secret(cls, value: str | None) -> str | None:
        return check_address(value, "tracking.uri")

    @field_validator("experiment")
    @classmethod
    def _no_path(cls, value: str) -> str:
        return check_path_part(value)

    @field_validator("prefect", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return on_or_off(value)
