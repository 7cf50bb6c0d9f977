"""The sections that every run has in its settings, beside those that its method and its partition declare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from shoal.core.setting import setting
from shoal.engine.settings.addresses import ADDRESS_SCHEMA, check_address
from shoal.engine.settings.path_names import check_path_part

PathPart = Annotated[str, AfterValidator(check_path_part)]
"""A text that becomes one part of a path, and is checked for that."""
Address = Annotated[str | None, AfterValidator(check_address), Field(json_schema_extra=ADDRESS_SCHEMA)]
"""An address that holds no password or token."""
SWITCHES = {"true": "on", "yes": "on", "false": "off", "no": "off"}
OnOff = Annotated[Literal["auto", "off", "on"], BeforeValidator(lambda word: SWITCHES.get(str(word), word))]
"""Other readers of YAML read on and off as true and false."""


class Section(BaseModel):
    """Settings of another thing than a run, such as a night: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class AutoMethod:
    """A method that is chosen before the run, by kind and size of the data; see docs/which_method.md."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", title="auto")

    name: Literal["auto"] = "auto"
    settings: dict[str, Any] = setting({}, "settings of the method that will be chosen, which are checked then")


@dataclass(frozen=True)
class ChooseSection:
    """How a run chooses the number of clusters where `model.clusters` is auto: see docs/number-of-clusters.md."""

    min_clusters: int = setting(2, "smallest number of clusters to try", ge=2)
    max_clusters: int = setting(15, "largest number of clusters to try", ge=3, le=200)

    def __post_init__(self) -> None:
        if self.min_clusters >= self.max_clusters:
            raise ValueError(
                f"choose.min_clusters is {self.min_clusters} and choose.max_clusters is {self.max_clusters}: "
                "set max_clusters above min_clusters"
            )


@dataclass(frozen=True)
class DataSection:
    """The data set, and how much of it to use."""

    name: PathPart = setting(
        "digits", "name of a built-in data set (shoal data list), or of one that shoal data add has added"
    )
    limit: int | None = setting(
        None, "number of training samples to use, drawn at random with the seed; none: all of them", ge=2
    )
    options: dict[str, int] = setting({}, "options of a synthetic data set, such as clusters and samples")


@dataclass(frozen=True)
class ParticipationSection:
    """Which clients take part in a round, and how many must succeed."""

    fraction: float = setting(1.0, "share of the clients that take part in each round", gt=0, le=1)
    minimum: float = setting(
        0.5, "share of the participating clients that must succeed; with fewer the run stops", ge=0, le=1
    )
    retries: int = setting(1, "how often to retrain a client that failed before the round continues without it", ge=0)
    dropout: float = setting(
        0.0,
        "simulated dropout: probability that a participating client does not answer, drawn for each client and round; "
        "at least one client always answers",
        ge=0,
        lt=1,
    )
    buffer: int | None = setting(
        None,
        "asynchronous rounds (FedBuff): number of answers that end a round while other clients continue; `fraction` is "
        "then the share of the clients that train at the same time; none: a round waits for all clients",
        ge=1,
    )
    staleness: float = setting(
        0.5,
        "with participation.buffer: exponent a of the weight (1 + t)^-a of an answer that began from a state t rounds "
        "old; 0: all answers have the same weight",
        ge=0,
    )


@dataclass(frozen=True)
class PrivacySection:
    """Differential privacy of the clients' updates: see docs/privacy.md."""

    clip: float | None = setting(
        None,
        "largest L2 norm of the difference between the weights that a client receives and those that it sends, or of a "
        "row where fedkmeans and fedgmm cluster it (1 is its root mean square there); longer ones are scaled down to "
        "it; none: clients send their updates unchanged",
        gt=0,
    )
    noise: float = setting(
        0.0,
        "standard deviation of the Gaussian noise that each client adds to every value that it sends, as a multiple of "
        "what the unit can change; 0: no noise",
        ge=0,
    )
    unit: Literal["client", "row"] = setting(
        "client",
        "whose data the noise hides: client: all rows of one; row: a single row, with fedkmeans and fedgmm",
    )
    delta: float = setting(1e-5, "delta for which epsilon is computed", gt=0, lt=1)
    epsilon: float | None = setting(
        None,
        "privacy budget of the data set, for all private runs on it together: a run ends before the round that would "
        "exceed it; none: no budget",
        gt=0,
    )
    budget: Literal["sent", "mean"] = setting(
        "sent",
        "what the budget bounds: sent: what all messages of one client reveal; mean: what the server states reveal to "
        "a reader who sees nothing else",
    )

    sums: Literal["plain", "integer", "masked"] = setting(
        "plain",
        "what the server reads where it needs sums alone: plain: each client's message; masked: only their sum, since "
        "masks hide each; integer: the same sums without masks",
    )

    def __post_init__(self) -> None:
        if self.noise and self.clip is None:
            raise ValueError("privacy.noise is a multiple of privacy.clip, which is not set: set privacy.clip too")
        if self.epsilon is not None and not self.noise:
            raise ValueError("the budget privacy.epsilon needs noise: set privacy.noise and privacy.clip")

    @property
    def secret(self) -> bool:
        """Whether clients add noise to their updates."""
        return self.clip is not None and self.noise > 0


@dataclass(frozen=True)
class EvaluateSection:
    """When and how the server state is evaluated."""

    every: int = setting(1, "number of rounds between two evaluations; the last round is always evaluated", ge=1)
    recalibrate: int = setting(
        4096,
        "number of training samples, drawn from all clients, from which BatchNorm's statistics are computed before an "
        "averaged network is evaluated or served; 0: use the averaged statistics",
        ge=0,
    )


@dataclass(frozen=True)
class CheckpointSection:
    """What a run's folder keeps."""

    keep: int = setting(2, "number of newest rounds whose server state is kept; metrics are kept of all", ge=1)


@dataclass(frozen=True)
class WorkersSection:
    """Where clients are trained, and how."""

    runner: Literal["local", "dask", "sites"] = setting(
        "local",
        "where clients are trained: local: processes of this machine; dask: the workers of a Dask cluster; sites: "
        "where their samples lie, by the server that `shoal sites serve` starts",
    )
    address: Address = setting(
        None,
        "dask: address of the scheduler of a running cluster, such as tcp://host:8786",
    )
    slots: Annotated[int, Field(ge=1)] | Literal["auto"] = setting(
        "auto",
        "number of worker processes; auto: one for each CPU core, or up to 5 for each GPU, as its free memory and the "
        "CPU cores allow, or all workers of the running cluster",
    )
    batched: int = setting(
        1,
        "number of clients to train in one batched computation, if the method can: for small networks on a GPU",
        ge=1,
    )
    graphs: OnOff = setting(
        "auto",
        "capture local gradient steps as CUDA graphs and replay them, with the same bits; auto: on GPUs, for steps "
        "that can be captured and repeat often enough; on: a step that cannot be captured is an error",
    )
    timeout: Annotated[float, Field(gt=0)] | Literal["auto"] | None = setting(
        "auto",
        "minutes in which a worker must finish a client, a step of an optimiser or an evaluation, or else it counts as "
        "hung and is replaced; auto: 30 on CPUs, none on GPUs; null: none",
    )
    precision: Literal["auto", "fp32", "tf32", "bf16"] = setting(
        "auto",
        "floating-point precision; tf32: float32 with matrix products and convolutions in TF32 on a GPU; auto: bf16 on "
        "GPUs that have it, else fp32",
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "device of the workers; auto: a GPU if this machine has one"
    )

    @property
    def elsewhere(self) -> bool:
        """Whether a running cluster trains the clients: its devices may differ from this machine's."""
        return self.runner == "dask"

    def __post_init__(self) -> None:
        if self.runner == "dask" and self.address is None:
            raise ValueError("workers.runner=dask needs the scheduler of a running cluster: set workers.address")
        if self.graphs == "on" and self.batched > 1:
            raise ValueError("workers.graphs=on and workers.batched exclude each other: set only one of them")


@dataclass(frozen=True)
class TrackingSection:
    """Where results are shown besides the run's folder."""

    mlflow: bool = setting(True, "log the run to MLflow")
    uri: Address = setting(
        None,
        "address of the MLflow tracking server; none: MLFLOW_TRACKING_URI, else the embedded store; write passwords as "
        "${NAME} of an environment variable",
    )
    experiment: PathPart = setting("shoal", "name of the MLflow experiment")
    checkpoints: Literal["final", "all", "none"] = setting(
        "final", "server states to log to MLflow, each as a model whose step is its round"
    )
    clients: bool = setting(
        True,
        "log to MLflow what describes single clients: losses, counts, bytes, names, clusters of their samples, figures "
        "and the report; false: log only what describes all clients together",
    )
    model: bool = setting(True, "log the final model as an MLflow pyfunc")
    register_as: str = setting(
        "auto",
        "name of the final model in MLflow's registry; auto: shoal-METHOD-DATA; none: it is not registered",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
    )
    prefect: OnOff = setting("auto", "execute the run as a Prefect flow; auto: if a Prefect server answers")
