"""The definition of a study: rows, columns, scales, claims and the paper's values, read from a YAML file and checked.

A study is one table or figure of a paper. Its file lies in the folder of its system, beside the Python that derives
rows and figures from the finished runs. Rows and columns have a key, which claims, scales and functions refer to, and a
caption, which tables show and which may change at any time.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from shoal.core.errors import ShoalError, shown
from shoal.engine.settings.wrong_settings import MAX_SENTENCES, did_you_mean, format_value
from shoal.engine.settings.yaml_text import read_yaml_file

Role = Literal["method", "baseline", "reference", "ablation"]
"""The role of a row: the paper's method; a method that it competes with; the row that derived rows are compared with (a
baseline, or the method without the part in question); the method with one part changed."""


class StudyError(ShoalError):
    """A study is unknown, its file is wrong, or its result is missing."""


class Part(BaseModel):
    """A part of a study's file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Key = Annotated[
    str, Field(pattern=r"^[a-z][a-z0-9_]*$", description="lower-case letters, digits and _, a letter first")
]


class Variant(Part):
    """A row or a column, which changes the settings that all runs of the study share."""

    key: Key
    caption: str = Field(description="words that tables and figures show")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings that replace those of the study")


class Row(Variant):
    """A row of the table."""

    role: Role = Field("method", description="method, baseline, reference or ablation")


class Column(Variant):
    """A column of the table."""

    value: float | None = Field(None, description="the number that the column stands for on the axis of a figure")


STAGED: Final = "staged"
"""In place of a number of seeds: stages, until a claim is settled (`shoal_research.sequential`)."""
Seeds = Annotated[int, Field(ge=1)] | Literal["staged"]


class RowAtScale(Part):
    """The changes that a scale makes to one row."""

    skip: bool = Field(False, description="true: this scale does not run the row")
    seeds: Seeds | None = Field(None, description="runs a cell of this row; by default those of the scale")
    columns: tuple[str, ...] | None = Field(
        None, description="keys of the columns that the row is run in; by default all"
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="settings that replace those of row and column")


def _read_skip(value: Any) -> Any:
    if value == "skip":
        return {"skip": True}
    return value


class Scale(Part):
    """The size at which a study is run, and the number of runs."""

    about: str = Field(description="a sentence on data, clients and rounds at this scale")
    seeds: Seeds = Field(3, description="runs a cell, at least 1, or the word staged; each has its own seed")
    first_seed: int = Field(
        0, ge=0, description="of each cell, above 0 where a rule was written when earlier seeds had been looked at"
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="settings that replace those of the study")
    columns: dict[str, Column] | None = Field(None, description="columns by key; by default those of the study")
    rows: dict[str, Annotated[RowAtScale, BeforeValidator(_read_skip)]] = Field(
        default_factory=dict, description="changes to single rows by key, or the word skip"
    )
    needs: tuple[str, ...] | None = Field(
        None, description="data sets that are prepared first; by default those of the study"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="options that replace those of the study")


class Quantity(Part):
    """A number of the study's table."""

    row: str
    column: str
    metric: str


class Gap(Part):
    """The difference of two numbers of the study's table with the same metric, seed by seed."""

    above: Quantity
    below: Quantity


def _read_side(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 3 and all(isinstance(name, str) for name in value):
        return dict(zip(("row", "column", "metric"), value, strict=True))
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, list) for part in value):
        return {"above": _read_side(value[0]), "below": _read_side(value[1])}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError("expected [row, column, metric], two of these, or a number")


Side = Annotated[Gap | Quantity | float, BeforeValidator(_read_side)]
SIDE = "[row, column, metric] by keys; a list of two of these, whose difference is taken; or a number"


class Claim(Part):
    """A statement of the paper, judged on differences of the same seed: left op right + margin.

    The rule is written before anything is run: what is compared, by which margin, on how many seeds (those of the
    scale, or of the row at that scale), and the smallest difference that matters.

    A claim with `each_cell: true`, whose sides are names of metrics or numbers, is made of every cell of the table.
    """

    claim: str = Field(description="the statement in words")
    left: Side = Field(description=SIDE)
    op: Literal[">", ">=", "<", "<=", "within"] = Field(
        ">", description=">, >=, <, <=, or within: left and right differ by at most the margin"
    )
    right: Side = Field(description=SIDE)
    margin: float = Field(
        0.0, description="number that is added to the right side; with `within`, the largest allowed difference"
    )
    looked_for: float | None = Field(
        None, gt=0, description="smallest difference that matters, above 0; by default that of the study for the metric"
    )
    every_seed: bool = Field(
        False, description="true: the statement must hold for each seed, so that one seed can refute it"
    )
    decidable: Literal["any", "paper"] = Field(
        "any",
        description="any, or paper: only the scale paper can decide it, for example because features must be deep",
    )
    paper: str | None = Field(None, description="words of the paper, where paper_values do not hold its numbers")
    source: Literal["paper", "ours"] | None = Field(
        None, description="paper or ours: who makes the statement; by default that of the study"
    )

    @property
    def metric(self) -> str | None:
        """The metric of the claim; None where both sides are numbers."""
        return next((quantity.metric for quantity in self.quantities()), None)

    def quantities(self) -> list[Quantity]:
        """Return the numbers of the table that the claim compares."""
        return [*quantities_of(self.left), *quantities_of(self.right)]


def quantities_of(side: Gap | Quantity | float) -> list[Quantity]:
    """Return the numbers of the table that a side of a claim consists of; a bound has none."""
    if isinstance(side, Gap):
        return [side.above, side.below]
    if isinstance(side, Quantity):
        return [side]
    return []


EACH = "each"
"""In a control, the column that stands for every column that a claim compares."""


class Control(Part):
    """A condition for a table to say something about methods: left op right + margin, judged like a claim.

    Claims to which a failing control applies are out of regime, and so are those of a control that nothing measures. A
    claim that compares with the control's right row is a statement on the regime itself, and is judged as it is.
    """

    control: str = Field(description="the condition in words")
    left: Side | None = Field(None, description=f"{SIDE}; the column `{EACH}` stands for those of the claim")
    op: Literal[">", ">=", "<", "<=", "within"] = Field(">", description="as of a claim")
    right: Side | None = Field(None, description="as left; without both sides no row of the table measures the control")
    margin: float = Field(0.0, description="number that is added to the right side")
    rows: tuple[str, ...] = Field((), description="rows whose claims need the control; by default all")
    columns: tuple[str, ...] = Field((), description="columns whose claims need it; by default all")
    metrics: tuple[str, ...] = Field((), description="metrics whose claims need it; by default all")

    @property
    def measured(self) -> bool:
        """Whether rows of the table measure the control."""
        return self.left is not None and self.right is not None

    def quantities(self) -> list[Quantity]:
        """Return the numbers of the table that the control compares."""
        return [quantity for side in (self.left, self.right) if side is not None for quantity in quantities_of(side)]


class Study(Part):
    """One table or figure of a paper: our numbers beside the paper's, and its claims as checks.

    Functions are named as `module:name`. The module lies in the folder of the study's system; a name that begins with
    `shoal_research.` is a module that systems share.
    """

    system: str = Field(description="the folder that the file lies in")
    name: str = Field(description="the name of the file")
    title: str = Field(description="a line that says what the study shows")
    paper: str = Field(description="the paper, and its table or figure")
    metrics: tuple[str, ...] = Field(description="metrics of the last evaluated round, each a row of the result")
    percent: bool = Field(True, description="true: the result shows metrics in per cent")
    curve: str = Field("acc", description="metric that is drawn over rounds")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings that all runs share")
    rows: dict[str, Row] = Field(min_length=1, description="rows by key")
    columns: dict[str, Column] = Field(min_length=1, description="columns by key")
    scales: dict[str, Scale] = Field(min_length=1, description="scales by name, for example cpu and paper")
    derive: tuple[str, ...] = Field((), description="functions that add rows and figures from all runs at once")
    simulate: str | None = Field(None, description="a function that computes a cell without a federated run")
    add_data: str | None = Field(None, description="a function that adds the data sets of rows to the store")
    describe: str | None = Field(None, description="a function that returns words on each run, which are kept")
    table: str | None = Field(None, description="a function that makes the page's table in place of the usual ones")
    figures: tuple[str, ...] = Field((), description="functions that draw from the metrics of all simulated cells")
    needs: tuple[str, ...] = Field((), description="data sets that are prepared first; functions receive their folders")
    options: dict[str, Any] = Field(default_factory=dict, description="options of the study's own functions")
    paper_values: dict[str, dict[str, dict[str, float]]] = Field(
        default_factory=dict, description="the paper's numbers by keys of row and column and by metric"
    )
    page: str | None = Field(None, description="page of results that shows the study; by default that of its system")
    shown: tuple[str, ...] = Field((), description="metrics that the page shows; by default the first ones")
    images: dict[str, str] = Field(
        default_factory=dict, description="figures that are kept for the page: file name to caption"
    )
    looked_for: dict[str, float] = Field(
        default_factory=dict, description="smallest difference that matters to claims, by metric"
    )
    shared: tuple[str, ...] = Field(
        (), description="derived metrics that depend on one run alone, so that studies of a system share kept ones"
    )
    source: Literal["paper", "ours"] = Field("paper", description="paper or ours: who makes the claims")
    in_regime: tuple[Control, ...] = Field(
        (), description="conditions under which the table says something about methods; [] where it needs none"
    )
    claims: tuple[Claim, ...] = Field((), description="the paper's statements as checks")

    def columns_at(self, scale: str) -> Mapping[str, Column]:
        """Return the columns of the table at a scale, by key."""
        own = self.scales[scale].columns
        if own is None:
            return self.columns
        return own

    def at(self, scale: str) -> Study:
        """Return the study with the needs and options of a scale."""
        own = self.scales[scale]
        if own.needs is None:
            needs = self.needs
        else:
            needs = own.needs
        return self.model_copy(update={"needs": needs, "options": {**self.options, **own.options}})

    def runs_at(self, scale: str, row: str, column: str) -> bool:
        """Return whether a scale runs a cell."""
        own = self.scales[scale].rows.get(row, RowAtScale())
        listed = own.columns is None or column in own.columns
        return not own.skip and listed and column in self.columns_at(scale)

    def seeds_at(self, scale: str, row: str) -> Seeds:
        """Return the number of runs of each cell of a row at a scale, or that it is staged."""
        return self.scales[scale].rows.get(row, RowAtScale()).seeds or self.scales[scale].seeds

    def seeds_of(self, claim: Claim, scale: str) -> Seeds:
        """Return the number of seeds on which a claim is judged at a scale: staged where all of its rows are."""
        planned = [self.seeds_at(scale, quantity.row) for quantity in claim.quantities()]
        fixed = [seeds for seeds in planned if isinstance(seeds, int)]
        return min(fixed, default=STAGED)

    def source_of(self, claim: Claim) -> str:
        """Return who makes a claim: `paper`, or `ours`."""
        return claim.source or self.source

    def judged_at(self, claim: Claim) -> list[str]:
        """Return the scales that run all cells of a claim."""
        cells = {(quantity.row, quantity.column) for quantity in claim.quantities()}
        return [scale for scale in self.scales if all(self.runs_at(scale, *cell) for cell in cells)]

    def claims_at(self, scale: str) -> list[Claim]:
        """Return the claims whose cells a scale runs."""
        return [claim for claim in self.claims if scale in self.judged_at(claim)]

    def difference_looked_for(self, claim: Claim) -> float | None:
        """Return the smallest difference that matters to a claim; None where the study names none."""
        return claim.looked_for or self.looked_for.get(claim.metric or "")

    def published(self, row: str, column: str, metric: str) -> float | None:
        """Return the paper's number by keys of row and column; None where it prints none."""
        return self.paper_values.get(row, {}).get(column, {}).get(metric)

    def functions(self) -> list[str]:
        """Return the functions that the study names."""
        single = (self.simulate, self.add_data, self.describe, self.table)
        return [*self.derive, *self.figures, *filter(None, single)]


def study_names() -> list[str]:
    """Return the names of all studies."""
    return sorted(_files())


def _files() -> dict[str, tuple[str, Any]]:
    """Return the system and the file of each study, by name."""
    return {
        file.name.removesuffix(".yaml"): (folder.name, file)
        for folder in resources.files("shoal_research").iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }


def load_study(name: str) -> Study:
    """Read and check a study.

    Raises:
        StudyError: no study has the name, or its file is wrong: names file and key, and says what was expected.
    """
    files = _files()
    if name not in files:
        hint = did_you_mean(name, sorted(files))
        raise StudyError(f"no study is called {name!r}{hint}; `shoal study list` shows all")
    system, file = files[name]
    where = f"studies/{system}/{file.name}"
    study = make_study(read_yaml_file(file, "", StudyError), system, where)
    if study.name != name:
        raise StudyError(f"{where}: name: given {study.name!r}; expected {name!r}, the name of the file")
    return study


def make_study(raw: Any, system: str, where: str) -> Study:
    """Check the content of a study's file.

    Args:
        raw: the content.
        system: the folder of the file.
        where: the file, as errors name it.

    Raises:
        StudyError: a line for each wrong key, with the file, the key and what was expected.
    """
    if not isinstance(raw, dict):
        raise StudyError(f"{where} holds a {type(raw).__name__}; expected the keys of a study")
    try:
        study = Study.model_validate({**_with_keys(raw), "system": system})
    except ValidationError as error:
        raise StudyError(_lines(where, [_sentence(item) for item in error.errors()])) from None
    if wrong := [*unknown_references(study), *wrong_claims(study), *wrong_controls(study)]:
        raise StudyError(_lines(where, wrong))
    return study


def _lines(where: str, sentences: list[str]) -> str:
    lines = [f"{where}: {sentence}" for sentence in sentences[:MAX_SENTENCES]]
    if len(sentences) > MAX_SENTENCES:
        lines.append(f"and {len(sentences) - MAX_SENTENCES} more")
    return "\n".join(lines)


def _with_keys(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file with the key of each row and column inside it, where a file has no need of it."""
    content = {**raw, "rows": _keyed(raw.get("rows")), "columns": _keyed(raw.get("columns"))}
    scales = raw.get("scales")
    if isinstance(scales, dict):
        content["scales"] = {
            name: {**scale, "columns": _keyed(scale["columns"])}
            if isinstance(scale, dict) and "columns" in scale
            else scale
            for name, scale in scales.items()
        }
    if isinstance(raw.get("claims"), list):
        content["claims"] = [own for claim in raw["claims"] for own in _claims_of(claim, content)]
    return {key: value for key, value in content.items() if key in raw}


def _claims_of(claim: Any, content: dict[str, Any]) -> list[Any]:
    """Return a claim with `each_cell: true` once for every row and column, where its sides name metrics alone."""
    rows = content.get("rows")
    columns = content.get("columns")
    written_out = isinstance(claim, dict) and bool(claim.get("each_cell"))
    if not written_out or not isinstance(rows, dict) or not isinstance(columns, dict):
        return [claim]
    found = []
    for row, column in itertools.product(rows.items(), columns.items()):
        captions = [str(part.get("caption", key)) for key, part in (row, column) if isinstance(part, dict)]
        own = {key: value for key, value in claim.items() if key != "each_cell"}
        own["claim"] = f"{', '.join(captions)}: {claim.get('claim')}"
        for side in ("left", "right"):
            if isinstance(claim.get(side), str):
                own[side] = [row[0], column[0], claim[side]]
        found.append(own)
    return found


def _keyed(variants: Any) -> Any:
    if not isinstance(variants, dict):
        return variants
    return {key: {"key": key, **variant} if isinstance(variant, dict) else variant for key, variant in variants.items()}


def _sentence(item: Any) -> str:
    """Return one of pydantic's errors with the key, the given value and what was expected."""
    path = ".".join(shown(step) for step in item["loc"] if step != "key") or "study"
    model, description = _describe(item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{path}: there is no such key; expected one of {', '.join(model.model_fields)}"
    if item["type"] == "missing":
        return f"{path}: is missing; expected {description}"
    return f"{path}: given {format_value(item['input'])}; expected {description}"


def _describe(location: tuple[int | str, ...]) -> tuple[type[BaseModel], str]:
    """Return the part of a study that a place in its file belongs to, and what is expected at that place."""
    model: type[BaseModel] = Study
    description = "the keys of a study"
    for step in location:
        field = model.model_fields.get(str(step))
        if field is not None:
            description = field.description or description
            model = _part_in(field.annotation) or model
    return model, description


def _part_in(annotation: Any) -> type[BaseModel] | None:
    """Return the part of a study that a type holds: itself, or as the value of a mapping or a sequence."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _part_in(inner))), None)


def unknown_references(study: Study) -> Iterator[str]:
    """Yield a sentence for each key of a row or column that scales, claims or paper values name and that is unknown."""
    all_columns = dict.fromkeys(key for scale in study.scales for key in study.columns_at(scale))
    for path, key, allowed in references(study, all_columns):
        if key not in allowed:
            names = ", ".join(shown(name) for name in list(allowed)[:MAX_SENTENCES])
            yield f"{path}: given {format_value(key)}; expected one of {names}"


def references(study: Study, all_columns: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield each reference to a row or column: its path in the file, the key, and the rows or columns it may name."""
    for name, scale in study.scales.items():
        for row, own in scale.rows.items():
            path = f"scales.{shown(name)}.rows.{shown(row)}"
            yield path, row, study.rows
            yield from ((f"{path}.columns", column, study.columns_at(name)) for column in own.columns or ())
    for row, values in study.paper_values.items():
        path = f"paper_values.{shown(row)}"
        yield path, row, study.rows
        yield from ((f"{path}.{shown(column)}", column, all_columns) for column in values)
    for number, claim in enumerate(study.claims):
        for name, side in (("left", claim.left), ("right", claim.right)):
            for quantity in quantities_of(side):
                yield f"claims.{number}.{name}", quantity.row, study.rows
                yield f"claims.{number}.{name}", quantity.column, all_columns
    for number, control in enumerate(study.in_regime):
        path = f"in_regime.{number}"
        named = [quantity.column for quantity in control.quantities()]
        yield from ((path, row, study.rows) for row in (*control.rows, *(each.row for each in control.quantities())))
        yield from ((path, column, all_columns) for column in (*control.columns, *named) if column != EACH)


def wrong_claims(study: Study) -> Iterator[str]:
    """Yield a sentence for each claim that cannot be judged."""
    for number, claim in enumerate(study.claims):
        scales = study.judged_at(claim)
        if claim.metric is None:
            yield f"claims.{number}: compares two numbers; expected [row, column, metric] on the left or on the right"
        elif not scales:
            yield f"claims.{number}: no scale runs all of its cells; let one scale run them, or compare other cells"
        if claim.decidable == "paper" and "paper" not in scales:
            yield f"claims.{number}.decidable: given 'paper'; the scale paper does not run all of its cells"
        if claim.op == "within" and (claim.margin <= 0 or claim.every_seed):
            yield f"claims.{number}: within needs a margin above 0, and excludes every_seed"


def wrong_controls(study: Study) -> Iterator[str]:
    """Yield a sentence for each control that cannot be judged."""
    for number, control in enumerate(study.in_regime):
        if (control.left is None) != (control.right is None):
            yield f"in_regime.{number}: has one side; expected left and right, or neither where no row measures it"
        elif control.measured and not control.quantities():
            yield f"in_regime.{number}: compares two numbers; expected [row, column, metric] on a side"
        if control.op == "within" and control.margin <= 0:
            yield f"in_regime.{number}: within needs a margin above 0"


def function(study: Study, path: str) -> Callable[..., Any]:
    """Import a function that a study names as `module:name`.

    Raises:
        StudyError: it cannot be imported.
    """
    module, _, name = path.partition(":")
    if not module.startswith("shoal_research."):
        module = f"shoal_research.{study.system}.{module}"
    try:
        result: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return result
    except (ImportError, AttributeError) as error:
        raise StudyError(f"study {study.name!r} names {module}:{name}, which cannot be imported: {error}") from error
