"""What a study is: rows, columns, scales, claims and the paper's values, read from a YAML file and checked.

A study is one table or figure of a paper. Its file lies in the folder of its system, beside the Python that derives
rows and figures from the finished runs. Rows and columns have a key, which claims, scales and functions refer to, and a
caption, which tables show and which may be worded anew at any time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from shoal.core.errors import ShoalError, shown
from shoal.engine.settings.run_settings import typed_settings
from shoal.engine.settings.typed_yaml import by_type, settings_within
from shoal.engine.settings.wrong_settings import MAX_SENTENCES, format_value
from shoal.engine.settings.yaml_text import read_yaml_file

Role = Literal["method", "baseline", "reference", "ablation"]
"""What a row is compared as: the paper's method; what it competes with; what derived rows are measured against (a
baseline, or the method without the part in question); the method with one part changed."""


class StudyError(ShoalError):
    """A study is unknown, or its file is wrong."""


class Part(BaseModel):
    """A part of a study's file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Key = Annotated[
    str, Field(pattern=r"^[a-z][a-z0-9_]*$", description="lower-case letters, digits and _, a letter first")
]


class Variant(Part):
    """A row or a column: a change of the settings that all runs of the study share."""

    key: Key
    caption: str = Field(description="the words that tables and figures show")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings laid over those of the study")


class Row(Variant):
    """A row of the table."""

    role: Role = Field("method", description="method, baseline, reference or ablation")


class Column(Variant):
    """A column of the table."""

    value: float | None = Field(None, description="the number that the column stands for on the axis of a figure")


class RowAtScale(Part):
    """What a scale changes of one row."""

    skip: bool = Field(False, description="true: the row is not run at this scale")
    seeds: int | None = Field(None, ge=1, description="runs a cell of this row, instead of the scale's")
    columns: tuple[str, ...] | None = Field(None, description="keys of the only columns that the row is run in")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings laid over those of row and column")


def _skip(given: Any) -> Any:
    return {"skip": True} if given == "skip" else given


class Scale(Part):
    """At which size a study is run, and how often."""

    about: str = Field(description="a sentence on data, clients and rounds at this scale")
    seeds: int = Field(3, ge=1, description="the number of runs a cell, 1 or more")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings laid over those of the study")
    columns: dict[str, Column] | None = Field(None, description="columns instead of those of the study, by key")
    rows: dict[str, Annotated[RowAtScale, BeforeValidator(_skip)]] = Field(
        default_factory=dict, description="changes of single rows by key, or the word skip"
    )
    needs: tuple[str, ...] | None = Field(None, description="data sets that are prepared first, instead of the study's")
    options: dict[str, Any] = Field(default_factory=dict, description="options laid over those of the study")


class Quantity(Part):
    """A number of the study's table."""

    row: str
    column: str
    metric: str


class Gap(Part):
    """How far a number of the study's table is above another of the same metric, seed by seed."""

    above: Quantity
    below: Quantity


def _side(given: Any) -> Any:
    if isinstance(given, list) and len(given) == 3 and all(isinstance(name, str) for name in given):
        return dict(zip(("row", "column", "metric"), given, strict=True))
    if isinstance(given, list) and len(given) == 2 and all(isinstance(part, list) for part in given):
        return {"above": _side(given[0]), "below": _side(given[1])}
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    raise ValueError("expected [row, column, metric], two of these, or a number")


Side = Annotated[Gap | Quantity | float, BeforeValidator(_side)]
SIDE = "[row, column, metric] by keys, two of these, of which the second is taken off, or a number"


class Claim(Part):
    """A statement of the paper, judged on differences of the same seed: left op right + margin.

    The rule stands here before anything is run: what is compared, by which margin, at how many seeds (those of the
    scale, or of the row at that scale), and which difference is looked for.
    """

    claim: str = Field(description="the statement in words")
    left: Side = Field(description=SIDE)
    op: Literal[">", ">=", "<", "<=", "within"] = Field(
        ">", description=">, >=, <, <= or within: left and right are no further apart than the margin"
    )
    right: Side = Field(description=SIDE)
    margin: float = Field(0.0, description="a number that is added to the right side; of `within` the half-width")
    looked_for: float | None = Field(
        None, gt=0, description="the smallest difference that matters, above 0; by default the study's for the metric"
    )
    every_seed: bool = Field(False, description="true: the statement is about each seed, so that one can refute it")
    decidable: Literal["any", "paper"] = Field(
        "any", description="any, or paper: no other scale can decide it, for example since features must be deep"
    )
    paper: str | None = Field(None, description="what the paper says, where its numbers do not stand in paper_values")

    @property
    def metric(self) -> str | None:
        """The metric that is judged; None where both sides are numbers."""
        return next((quantity.metric for quantity in self.quantities()), None)

    def quantities(self) -> list[Quantity]:
        """The numbers that are measured: one or more."""
        return [*quantities_of(self.left), *quantities_of(self.right)]


def quantities_of(side: Gap | Quantity | float) -> list[Quantity]:
    """The numbers of the table that a side of a claim is made of; none of a bound."""
    if isinstance(side, Gap):
        return [side.above, side.below]
    return [side] if isinstance(side, Quantity) else []


class Study(Part):
    """One table or figure of a paper: ours beside the paper's, and its claims as checks.

    Functions are named as `module:name`, where the module lies in the folder of the study's system, or, with
    `studies.` before it, is one that systems share.
    """

    system: str = Field(description="the folder that the file lies in")
    name: str = Field(description="the name of the file")
    title: str = Field(description="a line on what the study shows")
    paper: str = Field(description="the paper, and its table or figure")
    metrics: tuple[str, ...] = Field(description="metrics of the last evaluated round, one row of the result each")
    percent: bool = Field(True, description="whether the result shows metrics times 100")
    curve: str = Field("acc", description="the metric that is drawn over rounds")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings that all runs share")
    rows: dict[str, Row] = Field(min_length=1, description="rows by key")
    columns: dict[str, Column] = Field(min_length=1, description="columns by key")
    scales: dict[str, Scale] = Field(min_length=1, description="scales by name, for example cpu and paper")
    derive: tuple[str, ...] = Field((), description="functions that add rows and figures from all runs at once")
    simulate: str | None = Field(None, description="a function that computes a cell without a federated run")
    figures: tuple[str, ...] = Field((), description="functions that draw from the metrics of all simulated cells")
    needs: tuple[str, ...] = Field(
        (), description="data sets that are prepared first, whose folders functions are given"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="what the study's own functions are told besides")
    paper_values: dict[str, dict[str, dict[str, float]]] = Field(
        default_factory=dict, description="the paper's numbers by keys of row and column and by metric"
    )
    page: str | None = Field(None, description="the page of results that shows the study; by default the system's")
    shown: tuple[str, ...] = Field((), description="metrics that the page shows; by default the first ones")
    images: dict[str, str] = Field(
        default_factory=dict, description="figures that are kept for the page: file name to a sentence on what is seen"
    )
    looked_for: dict[str, float] = Field(
        default_factory=dict, description="the smallest difference that matters to claims, by metric"
    )
    claims: tuple[Claim, ...] = Field((), description="the paper's statements as checks")

    def columns_at(self, scale: str) -> Mapping[str, Column]:
        """The columns of the table at a scale, by key."""
        own = self.scales[scale].columns
        return self.columns if own is None else own

    def at(self, scale: str) -> Study:
        """The same with the needs and options of a scale."""
        own = self.scales[scale]
        needs = self.needs if own.needs is None else own.needs
        return self.model_copy(update={"needs": needs, "options": {**self.options, **own.options}})

    def runs_at(self, scale: str, row: str, column: str) -> bool:
        """Whether a cell is run at a scale."""
        own = self.scales[scale].rows.get(row, RowAtScale())
        wanted = own.columns is None or column in own.columns
        return not own.skip and wanted and column in self.columns_at(scale)

    def seeds_at(self, scale: str, row: str) -> int:
        """The number of runs a cell of a row at a scale."""
        return self.scales[scale].rows.get(row, RowAtScale()).seeds or self.scales[scale].seeds

    def seeds_of(self, claim: Claim, scale: str) -> int:
        """The number of seeds on which a claim is judged at a scale."""
        return min(self.seeds_at(scale, quantity.row) for quantity in claim.quantities())

    def judged_at(self, claim: Claim) -> list[str]:
        """The scales that run all cells of a claim."""
        cells = {(quantity.row, quantity.column) for quantity in claim.quantities()}
        return [scale for scale in self.scales if all(self.runs_at(scale, *cell) for cell in cells)]

    def claims_at(self, scale: str) -> list[Claim]:
        """The claims whose cells a scale runs."""
        return [claim for claim in self.claims if scale in self.judged_at(claim)]

    def difference_looked_for(self, claim: Claim) -> float | None:
        """The smallest difference that matters to a claim; None where nobody said."""
        return claim.looked_for or self.looked_for.get(claim.metric or "")

    def published(self, row: str, column: str, metric: str) -> float | None:
        """The paper's number by keys of row and column; None where it prints none."""
        return self.paper_values.get(row, {}).get(column, {}).get(metric)


def study_names() -> list[str]:
    """All studies."""
    return sorted(_files())


def _files() -> dict[str, tuple[str, Any]]:
    """The system and the file of each study, by name."""
    return {
        file.name.removesuffix(".yaml"): (folder.name, file)
        for folder in resources.files("shoal.studies").iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }


def load_study(name: str) -> Study:
    """A study by its name.

    Raises:
        StudyError: there is none of that name, or its file is wrong: the file, the key and what was expected.
    """
    files = _files()
    if name not in files:
        raise StudyError(f"no study {name!r}; there are {', '.join(sorted(files))}")
    system, file = files[name]
    where = f"studies/{system}/{file.name}"
    raw = settings_within(read_yaml_file(file, "", StudyError, keep_text=True), typed_settings)
    study = make_study(by_type(raw, Study, "", StudyError), system, where)
    if study.name != name:
        raise StudyError(f"{where}: name: given {study.name!r}; expected {name!r}, the name of the file")
    return study


def make_study(raw: Any, system: str, where: str) -> Study:
    """Check what a study's file holds.

    Args:
        raw: the file's content.
        system: the folder that it lies in.
        where: the file, as errors name it.

    Raises:
        StudyError: a line for each wrong key: the file, the key and what was expected.
    """
    if not isinstance(raw, dict):
        raise StudyError(f"{where} holds a {type(raw).__name__}; expected the keys of a study")
    try:
        study = Study.model_validate({**_with_keys(raw), "system": system})
    except ValidationError as error:
        raise StudyError(_lines(where, [_sentence(item) for item in error.errors()])) from None
    if unknown := list(_unknown_references(study)):
        raise StudyError(_lines(where, unknown))
    return study


def _lines(where: str, sentences: list[str]) -> str:
    found = [f"{where}: {sentence}" for sentence in sentences[:MAX_SENTENCES]]
    return "\n".join([*found, *[f"and {len(sentences) - MAX_SENTENCES} more"] * (len(sentences) > MAX_SENTENCES)])


def _with_keys(part: dict[str, Any]) -> dict[str, Any]:
    """The same with the key of each row and column, which a file writes once, inside the row or column."""
    found = dict(part)
    for name in ("rows", "columns"):
        if isinstance(part.get(name), dict):
            found[name] = {k: {"key": k, **v} if isinstance(v, dict) else v for k, v in part[name].items()}
    if isinstance(part.get("scales"), dict):
        scales = part["scales"].items()
        found["scales"] = {
            name: {**scale, "columns": _with_keys({"columns": scale["columns"]})["columns"]}
            if isinstance(scale, dict) and scale.get("columns") is not None
            else scale
            for name, scale in scales
        }
    return found


def _sentence(item: Any) -> str:
    """One of pydantic's errors as key, what was given and what was expected."""
    path = ".".join(shown(step) for step in item["loc"] if step != "key") or "study"
    model, description = _describe(item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{path}: there is no such key; expected one of {', '.join(model.model_fields)}"
    if item["type"] == "missing":
        return f"{path}: is missing; expected {description}"
    return f"{path}: given {format_value(item['input'])}; expected {description}"


def _describe(location: tuple[int | str, ...]) -> tuple[type[BaseModel], str]:
    """The part of a study that a place of its file belongs to, and what is expected at that place."""
    model: type[BaseModel] = Study
    description = "the keys of a study"
    for step in location:
        field = model.model_fields.get(str(step))
        if field is not None:
            description = field.description or description
            model = _part_in(field.annotation) or model
    return model, description


def _part_in(annotation: Any) -> type[BaseModel] | None:
    """The part of a study that a type holds: itself, or a value of a mapping or a sequence."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _part_in(inner))), None)


def _unknown_references(study: Study) -> Iterator[str]:
    """Sentences on keys of rows and columns that scales, claims or paper values name, and that do not exist."""
    columns = list(dict.fromkeys(key for scale in study.scales for key in study.columns_at(scale)))

    def wrong(path: str, given: str, known: Any) -> Iterator[str]:
        if given not in known:
            names = ", ".join(shown(name) for name in list(known)[:MAX_SENTENCES])
            yield f"{path}: given {format_value(given)}; expected one of {names}"

    for name, scale in study.scales.items():
        for row, own in scale.rows.items():
            yield from wrong(f"scales.{shown(name)}.rows.{shown(row)}", row, study.rows)
            for column in own.columns or ():
                yield from wrong(f"scales.{shown(name)}.rows.{shown(row)}.columns", column, study.columns_at(name))
    for row, values in study.paper_values.items():
        yield from wrong(f"paper_values.{shown(row)}", row, study.rows)
        for column in values:
            yield from wrong(f"paper_values.{shown(row)}.{shown(column)}", column, columns)
    for number, claim in enumerate(study.claims):
        for name, side in (("left", claim.left), ("right", claim.right)):
            for quantity in quantities_of(side):
                yield from wrong(f"claims.{number}.{name}", quantity.row, study.rows)
                yield from wrong(f"claims.{number}.{name}", quantity.column, columns)
        if claim.metric is None:
            yield f"claims.{number}: compares two numbers; expected [row, column, metric] on the left or on the right"
        elif not study.judged_at(claim):
            yield f"claims.{number}: no scale runs all of its cells; let one scale run them, or compare other cells"
        if claim.decidable == "paper" and "paper" not in study.judged_at(claim):
            yield f"claims.{number}.decidable: given 'paper'; the scale paper does not run all of its cells"
        if claim.op == "within" and (claim.margin <= 0 or claim.every_seed):
            yield f"claims.{number}: within wants a margin above 0, and no every_seed"


def function(study: Study, path: str) -> Callable[..., Any]:
    """A function that a study names as `module:name`.

    Raises:
        StudyError: there is none.
    """
    module, _, name = path.partition(":")
    if not module.startswith("shoal.studies."):
        module = f"shoal.studies.{study.system}.{module}"
    try:
        result: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return result
    except (ImportError, AttributeError) as error:
        raise StudyError(f"study {study.name!r} names {module}:{name}, which cannot be imported: {error}") from error
