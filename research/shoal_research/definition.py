"""The definition of a study: rows, columns, scales, claims and the paper's values, read from a YAML file and checked.

A study is one table or figure of a paper. Its file lies in the folder of its system, beside the Python that derives
numbers and figures from the finished runs. Rows and columns have a key, which claims, scales and kept cells refer to,
and a caption, which tables show and which may change at any time.
"""

from __future__ import annotations

import functools
import itertools
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

import shoal_research
from shoal.core.errors import ShoalError

Role = Literal["method", "baseline", "reference", "ablation"]
"""The role of a row: the paper's method; a method that it competes with; the row that derived rows are compared with (a
baseline, or the method without the part in question); the method with one part changed."""
HOME = Path(shoal_research.__file__).resolve().parent


class StudyError(ShoalError):
    """A study is unknown, its file is wrong, or its result is missing."""


class Part(BaseModel):
    """A part of a study's file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Variant(Part):
    """A row or a column: its key, words that tables show, and settings that replace those of the study."""

    key: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    caption: str
    settings: dict[str, Any] = Field(default_factory=dict)


class Row(Variant):
    """A row of the table."""

    role: Role = "method"


class Column(Variant):
    """A column of the table; `value` is the number that it stands for on the axis of a figure."""

    value: float | None = None


class RowAtScale(Part):
    """The changes that a scale makes to one row.

    Attributes:
        seeds: runs of each cell of the row; by default those of the scale.
        columns: keys of the columns that the row is run in; by default all, and with none the scale leaves it out.
        settings: that replace those of row and column.
    """

    seeds: int | None = Field(None, ge=1)
    columns: tuple[str, ...] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)


class Scale(Part):
    """The size at which a study is run, and the number of seeds.

    Attributes:
        about: a sentence on data, clients and rounds.
        seeds: runs of each cell, each with its own seed.
        first_seed: above 0 where a claim was written when earlier seeds had been looked at.
        settings: that replace those of the study.
        columns: by default those of the study.
        rows: changes to single rows.
    """

    about: str
    seeds: int = Field(3, ge=1)
    first_seed: int = Field(0, ge=0)
    settings: dict[str, Any] = Field(default_factory=dict)
    columns: dict[str, Column] | None = None
    rows: dict[str, RowAtScale] = Field(default_factory=dict)


class Quantity(NamedTuple):
    """A number of the study's table, by keys."""

    row: str
    column: str
    metric: str


def _read_side(value: Any) -> Any:
    """Return one [row, column, metric] as a list of one; two of them and numbers stay as they are."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [value]
    return value


Side = Annotated[float | tuple[Quantity] | tuple[Quantity, Quantity], BeforeValidator(_read_side)]
"""A number, a number of the table, or the difference of two: a side of a comparison."""


class Comparison(Part):
    """left op right + margin, on differences of the same seed; `within`: they differ by at most the margin."""

    left: Side
    op: Literal[">", ">=", "<", "<=", "within"] = ">"
    right: Side
    margin: float = 0.0

    def quantities(self) -> list[Quantity]:
        """Return the numbers of the table that are compared."""
        return quantities_of(self.left, self.right)


def quantities_of(*sides: Side | None) -> list[Quantity]:
    """Return the numbers of the table that some sides consist of."""
    return [quantity for side in sides if isinstance(side, tuple) for quantity in side]


class Claim(Comparison):
    """A statement, written before anything is run.

    Attributes:
        claim: the statement in words, `case: rule` where several differ in the case.
        every_seed: it must hold for each seed, so that one seed can refute it.
        decidable: `paper` where only the scale of this name can decide it, for example because features must be deep.
        source: who makes the statement, by default that of the study.
    """

    claim: str
    every_seed: bool = False
    decidable: Literal["any", "paper"] = "any"
    source: Literal["paper", "ours"] | None = None


EACH = "each"
"""In a control, the column that stands for every column that a claim compares."""


class Control(Part):
    """A condition for the table to say something about methods: left op right + margin.

    Claims that a failing control applies to are out of regime. A control without sides is measured by no row, and
    fails. A claim that compares with the control's right row is on the regime itself, and is judged as it is.

    Attributes:
        control: the condition in words.
        left, op, right, margin: as of `Comparison`; the column `each` stands for those of the claim.
        rows, columns, metrics: whose claims need it; by default all.
    """

    control: str
    left: Side | None = None
    op: Literal[">", ">=", "<", "<=", "within"] = ">"
    right: Side | None = None
    margin: float = 0.0
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def quantities(self) -> list[Quantity]:
        """Return the numbers of the table that the control compares."""
        return quantities_of(self.left, self.right)


class Study(Part):
    """One table or figure of a paper: our numbers beside the paper's, and its claims as checks.

    Functions are named as `module:name`. The module lies in the folder of the study's system; a name that begins with
    `shoal_research.` is a module that systems share.

    Attributes:
        system, name: the folder and the name of the file.
        title, paper: what the study shows, and the paper with its table or figure.
        metrics: of the last evaluated round, each a number of every cell.
        percent: whether these are shown in per cent.
        curve: the metric that is drawn over rounds.
        settings, rows, columns, scales: what is run.
        derive: functions that derive further numbers and figures from all runs at once.
        drawn: whether the set is a synthetic one, which is drawn with the seed of each run.
        code_at: the commit whose code computes the cells, for a study that is over: they are no federated runs, and
            here they are kept alone.
        add_data: a function that adds data sets to the store by their names, those that are not there.
        paper_values: the paper's numbers by keys of row and column and by metric.
        page: page of results that shows the study; by default that of its system.
        shown: metrics that the page shows; by default the first ones.
        images: figures that are kept for the page, file name to caption.
        source: who makes the claims.
        in_regime: conditions under which the table says something about methods.
        claims: statements as checks; `each_cell: true` makes one of every cell, with metrics as sides.
    """

    system: str
    name: str
    title: str
    paper: str
    metrics: tuple[str, ...]
    percent: bool = True
    curve: str = "acc"
    settings: dict[str, Any] = Field(default_factory=dict)
    rows: dict[str, Row] = Field(min_length=1)
    columns: dict[str, Column] = Field(min_length=1)
    scales: dict[str, Scale] = Field(min_length=1)
    derive: tuple[str, ...] = ()
    drawn: bool = False
    code_at: str | None = None
    add_data: str | None = None
    paper_values: dict[str, dict[str, dict[str, float]]] = Field(default_factory=dict)
    page: str
    shown: tuple[str, ...] = ()
    images: dict[str, str] = Field(default_factory=dict)
    source: Literal["paper", "ours"] = "paper"
    in_regime: tuple[Control, ...] = ()
    claims: tuple[Claim, ...] = ()

    def columns_at(self, scale: str) -> Mapping[str, Column]:
        """Return the columns of the table at a scale, by key."""
        columns = self.scales[scale].columns
        return self.columns if columns is None else columns

    def row_at(self, scale: str, row: str) -> RowAtScale:
        """Return the changes that a scale makes to a row."""
        return self.scales[scale].rows.get(row, RowAtScale())

    def runs_at(self, scale: str, row: str, column: str) -> bool:
        """Return whether a scale runs a cell."""
        changes = self.row_at(scale, row)
        listed = changes.columns is None or column in changes.columns
        return row in self.rows and listed and column in self.columns_at(scale)

    def seeds_at(self, scale: str, row: str) -> range:
        """Return the seeds of each cell of a row at a scale."""
        first = self.scales[scale].first_seed
        return range(first, first + (self.row_at(scale, row).seeds or self.scales[scale].seeds))

    def seeds_of(self, claim: Claim, scale: str) -> range:
        """Return the seeds that a claim is judged on at a scale: those that all of its rows have."""
        return min((self.seeds_at(scale, quantity.row) for quantity in claim.quantities()), key=len)

    def judged_at(self, claim: Claim) -> list[str]:
        """Return the scales that can judge a claim: they run all of its cells."""
        return [
            scale
            for scale in self.scales
            if claim.decidable in ("any", scale)
            and all(self.runs_at(scale, quantity.row, quantity.column) for quantity in claim.quantities())
        ]

    def command(self, scale: str) -> str:
        """Return the command that measures the study at a scale."""
        before = ""
        if self.code_at:
            before = f"git checkout {self.code_at}; "
        return f"{before}shoal study {self.name} --scale {scale}"

    def published(self, row: str, column: str, metric: str) -> float | None:
        """Return the paper's number by keys of row and column; None where it prints none."""
        return self.paper_values.get(row, {}).get(column, {}).get(metric)


def study_names() -> list[str]:
    """Return the names of all studies."""
    return sorted(path.stem for path in HOME.glob("*/*.yaml"))


@functools.cache
def load_study(name: str) -> Study:
    """Read and check a study.

    Raises:
        StudyError: no study has the name, or its file is wrong.
    """
    path = next(HOME.glob(f"*/{name}.yaml"), None)
    if path is None:
        raise StudyError(f"no study is called {name!r}; `shoal study list` shows all")
    return make_study(yaml.safe_load(path.read_text()), path.parent.name, name)


def studies_of(page: str) -> list[Study]:
    """Return the studies that a page of results shows."""
    return [study for study in map(load_study, study_names()) if study.page == page]


def make_study(raw: dict[str, Any], system: str, name: str) -> Study:
    """Check the content of a study's file.

    Raises:
        StudyError: a line for each wrong key.
    """
    try:
        study = Study.model_validate({"page": system, **_with_keys(raw), "system": system, "name": name})
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
    else:
        wrong = list(wrong_claims(study))
    if wrong:
        raise StudyError("\n".join(f"study {name}: {sentence}" for sentence in wrong))
    return study


def _with_keys(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file with the key of each row and column inside it, and claims of every cell written."""
    content = {**raw, "rows": _keyed(raw.get("rows")), "columns": _keyed(raw.get("columns"))}
    content["scales"] = {
        scale: {**about, "columns": _keyed(about["columns"])} if "columns" in about else about
        for scale, about in raw.get("scales", {}).items()
    }
    claims = raw.get("claims", [])
    return {**content, "claims": [one for claim in claims for one in _claims_of(claim, content)]}


def _keyed(variants: Any) -> Any:
    if not isinstance(variants, dict):
        return variants
    return {key: {"key": key, **variant} for key, variant in variants.items()}


def _claims_of(claim: dict[str, Any], content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a claim; with `each_cell: true` once for every cell, where its sides name metrics alone."""
    if not claim.get("each_cell"):
        yield claim
        return
    rule = {key: value for key, value in claim.items() if key != "each_cell"}
    for row, column in itertools.product(content["rows"].values(), content["columns"].values()):
        case = f"{row['caption']}, {column['caption']}"
        sides = {
            side: [row["key"], column["key"], rule[side]] if isinstance(rule[side], str) else rule[side]
            for side in ("left", "right")
        }
        yield {**rule, **sides, "claim": f"{case}: {rule['claim']}"}


def wrong_claims(study: Study) -> Iterator[str]:
    """Yield a sentence for each claim that no scale can judge, and for each key of a row or column that is unknown."""
    columns = {column for scale in study.scales for column in study.columns_at(scale)} | {EACH}
    for claim in study.claims:
        if not claim.quantities() or not study.judged_at(claim):
            yield f"claim {claim.claim!r}: no scale runs all of its cells"
    for control in study.in_regime:
        if (control.left is None) != (control.right is None):
            yield f"control {control.control!r}: has one side; expected left and right, or neither"
        for key in {*control.rows, *(quantity.row for quantity in control.quantities())} - set(study.rows):
            yield f"control {control.control!r}: there is no row {key!r}"
        for key in {*control.columns, *(quantity.column for quantity in control.quantities())} - columns:
            yield f"control {control.control!r}: there is no column {key!r}"


def function(study: Study, path: str) -> Callable[..., Any]:
    """Import a function that a study names as `module:name`.

    Raises:
        StudyError: it cannot be imported.
    """
    if not path.startswith("shoal_research."):
        path = f"shoal_research.{study.system}.{path}"
    try:
        result: Callable[..., Any] = pkgutil.resolve_name(path)
        return result
    except (ImportError, AttributeError) as error:
        raise StudyError(f"study {study.name!r} names {path}, which cannot be imported: {error}") from error
