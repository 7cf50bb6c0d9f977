"""Kept results, and the pages that are made from them."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from shoal.cli.console import out
from shoal.engine.store.code_version import GitState
from shoal.engine.store.lineage import Environment, current_environment
from shoal_research import pages, runner, shared_cells, simulation, verdicts
from shoal_research.claims import check
from shoal_research.claims_tables import claims_tables
from shoal_research.clean_code import require_clean_code
from shoal_research.commands import claims as claims_command
from shoal_research.definition import Study, StudyError, load_study, make_study, study_names
from shoal_research.judging import Verdict
from shoal_research.kept import MAX_IMAGE_BYTES, RESULTS, image_to_keep, keep, kept_file, load_kept
from shoal_research.label_free.calibrate import FILE as TUNING
from shoal_research.pages import (
    cases_of_rules,
    make_pages,
    missing_parts,
    overview,
    page_of,
    shared_reasons,
    system_page,
    values_cells,
    write_pages,
)
from shoal_research.provenance import Provenance, combined, commit
from shoal_research.result import study_folder
from shoal_research.rows import StudyRow
from shoal_research.runner import run_study
from shoal_research.shared_cells import kept_table
from shoal_research.verdicts import Entry, entries
from tests.sources import ROOT

CONTROL = RESULTS / "cfcl_control.json"
"""What `shoal_research.benchmarks.cfcl_control` measured."""
SETTINGS = {"steps": 200, "lr": 0.1, "eps1": 0.01, "eps2": 0.1}


def toy(**changes: Any) -> Study:
    """Two problems of the study `cfl-toy-paths`, with a claim each and an image."""
    raw: dict[str, Any] = {
        "name": "toy",
        "title": "paths in the plane",
        "paper": "none",
        "simulate": "simulate:toy_paths",
        "metrics": ["max_norm", "split"],
        "percent": False,
        "settings": SETTINGS,
        "rows": {
            "apart": {"caption": "Apart", "settings": {"radius": 0.5}},
            "close": {"caption": "Close", "settings": {"radius": 1.5}},
        },
        "columns": {"two": {"caption": "two clients", "settings": {"distance": 2.0}}},
        "scales": {"cpu": {"about": "200 steps", "seeds": 2}, "paper": {"about": "more", "seeds": 2}},
        "images": {"seen.png": "What is seen.", "apart-two-1/paths.png": "A path."},
        "looked_for": {"max_norm": 0.1},
        "paper_values": {"apart": {"two": {"max_norm": 0.4}}},
        "claims": [
            {"claim": "apart pulls", "left": ["apart", "two", "max_norm"], "right": ["close", "two", "max_norm"]},
            {"claim": "close rests", "left": ["close", "two", "max_norm"], "op": "<=", "right": 0.25},
            {"claim": "wide", "left": ["apart", "two", "split"], "right": 0, "decidable": "paper"},
        ],
    }
    return make_study({**raw, **changes}, "cfl", "studies/cfl/toy.yaml")


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder of documentation whose pages have their hand-written text alone."""
    folder = tmp_path / "docs"
    (folder / "results").mkdir(parents=True)
    for path in (folder / "results.md", *(folder / "results" / f"{name}.md" for name in pages.PAGES)):
        path.write_text(f"Words on {path.stem}.\n\n{pages.MARK}\n")
    return folder


def measured_with(git: GitState) -> Environment:
    """This environment, as of another state of Shoal's clone."""
    environment = current_environment()
    assert environment.shoal is not None
    return replace(environment, shoal=replace(environment.shoal, git=git))


@pytest.fixture
def measured(home: Path, docs: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Run a study and keep its result, as of a clean work tree."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    committed = measured_with(GitState(head.strip(), dirty=False, page=None))

    def run(study: Study, clean: bool = True, **options: Any) -> Path:
        if clean:
            monkeypatch.setattr(simulation, "current_environment", lambda: committed)
        monkeypatch.setattr(runner, "load_study", lambda name: study)
        monkeypatch.setattr(simulation.os, "cpu_count", lambda: 1)  # two cells are not worth two new processes
        folder = Path(run_study("toy", "cpu", **options).folder)
        (folder / "seen.png").write_bytes(b"an image")
        return keep(study, "cpu", docs)

    return run


def by_claim(study: Study, docs: Path) -> dict[str, Entry]:
    return {entry.claim.claim: entry for entry in entries(study, docs)}


@pytest.fixture(scope="module")
def judged() -> dict[str, tuple[Study, list[Entry]]]:
    """Every study with its claims, judged once for all tests."""
    studies = [load_study(name) for name in study_names()]
    return {study.name: (study, entries(study)) for study in studies}


def test_pages_are_what_their_data_and_texts_make(
    judged: dict[str, tuple[Study, list[Entry]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change of a study or of kept data: `make results`."""
    monkeypatch.setattr(pages, "entries", lambda study, docs: judged[study.name][1])
    made = make_pages()
    assert (ROOT / "research" / "docs" / "results.md") in made
    for path, content in made.items():
        assert path.read_text() == content, f"{path.relative_to(ROOT)} is not what `make results` makes"


def test_every_claim_has_a_row_and_a_verdict(judged: dict[str, tuple[Study, list[Entry]]]) -> None:
    found = [entry for _, own in judged.values() for entry in own]
    claims = [(study.name, claim.claim) for study, _ in judged.values() for claim in study.claims]
    assert len(set(claims)) == len(claims), "no two claims of a study in the same words"
    assert {(entry.study.name, entry.claim.claim) for entry in found} == set(claims)
    for name, claim in claims:
        page = (ROOT / "research" / "docs" / "results" / f"{page_of(judged[name][0])}.md").read_text()
        for part in claim.replace("|", "\\|").split(": ", 1):
            # Claims that nothing measured may share a line up to the number at their end.
            assert part in page or all(each in page for each in part.rsplit(" ", 1)), claim
    for entry in found:
        assert entry.verdict in set(Verdict)
        assert entry.scale in entry.study.judged_at(entry.claim)


def test_what_is_kept_is_small_and_says_nothing_of_the_machines_folders() -> None:
    known = {kept_file(name, scale) for name in study_names() for scale in load_study(name).scales}
    for path in RESULTS.glob("*.json"):
        assert path in {*known, TUNING, CONTROL}, f"{path.name} is of no study"
        assert path.stat().st_size < 120_000
        assert str(Path.home()) not in path.read_text()
        assert '"/' not in path.read_text(), "an absolute path"
    for path in (ROOT / "research" / "docs" / "images").iterdir():
        assert path.stat().st_size <= MAX_IMAGE_BYTES, path.name


def test_a_kept_result_gives_the_verdicts_of_the_run(measured: Callable[..., Path], docs: Path) -> None:
    study = toy()
    path = measured(study)
    result = json.loads((study_folder("toy", "cpu") / "result.json").read_text())
    found = by_claim(study, docs)
    assert [found[claim["claim"]].verdict for claim in result["claims"]] == ["reproduced", "reproduced", "not run"]
    differences = found["apart pulls"].checked.differences
    assert differences == pytest.approx(result["claims"][0]["differences"], rel=1e-5)
    assert not any(entry.stale or entry.later for entry in found.values())
    one = load_kept("toy", "cpu", docs)
    assert one is not None
    assert one.provenance.versions["torch"]
    assert len(one.provenance.commits[0]) in (12, 13)
    assert [row.seeds for row in one.rows] == [(0, 1)] * 4
    assert path.read_text().count("\n") < 30, "a row a line"
    assert (docs / "images" / "toy-cpu-seen.png").read_bytes() == b"an image"
    page = system_page("cfl", [study], docs)
    assert "Words on cfl." in page
    assert "| Apart | 0.500 (0.400) |" in page, "the same number on every seed has no deviation"
    assert "Claims, 2 seeds, looking for 0.1, all **reproduced**:\n\n| claim | ours |" in page
    assert "![What is seen.](../images/toy-cpu-seen.png)" in page
    assert "![A path.](../images/toy-cpu-apart-two-1-paths.png)" in page
    assert "- `shoal study toy --scale paper`: not run: about 1 core minutes, 2 seeds\n  - wide" in page
    first = overview({"cfl": [study]}, docs)
    assert "| [CFL](results/cfl.md) | 2 | 1 |" in first
    assert "|  | reproduced | not run |" in first, "no column of a verdict that no claim has"
    assert "2 claims are judged by an interval, and 2 of them are reproduced or smaller than claimed." in first
    assert "Claims of ours" not in first
    assert "have changed" not in page


def test_changed_settings_are_marked_where_they_matter(measured: Callable[..., Path], docs: Path) -> None:
    study = toy()
    measured(study)
    changed = toy(rows={**study.model_dump()["rows"], "apart": {"caption": "Apart", "settings": {"radius": 0.6}}})
    found = by_claim(changed, docs)
    assert (found["apart pulls"].stale, found["close rests"].stale) == (True, False)
    page = system_page("cfl", [changed], docs)
    assert page.count("; settings have changed since |") == 1
    assert "**Settings of apart/two have changed since this was measured.**" in page
    everything = toy(settings={**SETTINGS, "steps": 300})
    assert "**All settings have changed since this was measured.**" in system_page("cfl", [everything], docs)
    assert by_claim(toy(title="in other words"), docs)["apart pulls"].stale is False


def test_settings_that_were_laid_over_are_said_and_do_not_count_as_changes(
    measured: Callable[..., Path], docs: Path
) -> None:
    study = toy()
    measured(study, overrides={"steps": 50, "workers": {"slots": 1}})
    assert not by_claim(study, docs)["apart pulls"].stale
    page = system_page("cfl", [study], docs)
    assert "`shoal study toy --scale cpu --set steps=50`: " in page


def test_a_rule_that_was_written_after_the_run_is_marked(measured: Callable[..., Path], docs: Path) -> None:
    study = toy()
    measured(study)
    sides = {"left": ["apart", "two", "max_norm"], "right": ["close", "two", "max_norm"]}
    later = toy(claims=[{"claim": "apart pulls", **sides, "margin": 0.2}, {"claim": "reworded", **sides}])
    found = by_claim(later, docs)
    assert (found["apart pulls"].later, found["reworded"].later) == (True, False)
    page = system_page("cfl", [later], docs)
    assert page.count("The rule was written after the run") == 1
    assert page.count("**reproduced** †") == 1


def test_seeds_are_part_of_the_rule(measured: Callable[..., Path], docs: Path) -> None:
    """Two were planned and three run; fewer planned afterwards is a new rule, more planned are missing."""
    study = toy()
    measured(study, seeds=3)
    page = system_page("cfl", [study], docs)
    assert "Claims, 3, 2 planned seeds, looking for 0.1, all **reproduced**:\n" in page
    scales = study.model_dump()["scales"]
    fewer = toy(scales={**scales, "cpu": {"about": "200 steps", "seeds": 1}})
    assert by_claim(fewer, docs)["apart pulls"].later
    more = toy(scales={**scales, "cpu": {"about": "200 steps", "seeds": 4}})
    page = system_page("cfl", [more], docs)
    assert "Claims, 3 of 4 seeds, looking for 0.1, all **not measured**:\n" in page
    assert "written after the run" not in page


def test_keeping_some_cells_leaves_the_others(measured: Callable[..., Path], docs: Path) -> None:
    study = toy()
    path = measured(study)
    before = json.loads(path.read_text())
    figure = docs / "images" / "toy-cpu-seen.png"
    figure.write_bytes(b"of both rows")
    measured(study, rows=["close"], seeds=3)
    after = json.loads(path.read_text())
    assert after["digests"] == before["digests"]
    assert [row for row in after["rows"] if row["row"] == "apart"] == [
        row for row in before["rows"] if row["row"] == "apart"
    ]
    assert {len(row["seeds"]) for row in after["rows"] if row["row"] == "close"} == {3}
    assert [row["row"] for row in after["rows"]] == sorted(row["row"] for row in before["rows"]), "in the study's order"
    assert after["provenance"]["seconds"] > before["provenance"]["seconds"]
    assert figure.read_bytes() == b"of both rows", "a figure of some rows does not take the place of one of all"
    claims = by_claim(study, docs)
    assert claims["apart pulls"].verdict is Verdict.REPRODUCED, "on the seeds that both sides have"


def test_where_kept_numbers_come_from_is_said_of_both() -> None:
    earlier = Provenance(("a", "b"), {"torch": "1"}, "x; y", "2026-01-02", 1.5)
    later = Provenance(("b", "c"), {"torch": "2"}, "y; z", "2026-01-01", 2.0)
    assert combined(earlier, later) == Provenance(("a", "b", "c"), {"torch": "2"}, "x; y; z", "2026-01-02", 3.5)
    assert combined(replace(earlier, seconds=None), later).seconds is None


def test_keeping_loses_no_cell(measured: Callable[..., Path], docs: Path) -> None:
    study = toy()
    path = measured(study)
    before = path.read_text()
    other = toy(settings={**SETTINGS, "steps": 150})
    lost = r"lacks close/two, which are kept with other settings: .* shoal study toy --scale cpu --gather"
    with pytest.raises(StudyError, match=lost):
        measured(other, rows=["apart"])
    with pytest.raises(StudyError, match=lost):
        measured(study, rows=["apart"], overrides={"steps": 150})
    assert path.read_text() == before
    fewer = toy(rows={"apart": study.model_dump()["rows"]["apart"]}, claims=[])
    measured(fewer)
    assert set(json.loads(path.read_text())["digests"]) == {"apart/two"}, "the study has no such row any more"


@pytest.mark.parametrize(
    ("git", "sentence"),
    [
        (GitState(None, None, None), "was measured outside of a repository: commit the code, and run shoal study toy"),
        (GitState("a" * 40, dirty=True, page=None), "on a work tree that differs from aaaaaaaaaaaa: commit the code"),
        (GitState("a" * 40, dirty=False, page=None), "on commit aaaaaaaaaaaa, which is not part of this branch"),
    ],
)
def test_a_result_of_code_that_nobody_can_get_is_not_kept(
    measured: Callable[..., Path], docs: Path, monkeypatch: pytest.MonkeyPatch, git: GitState, sentence: str
) -> None:
    monkeypatch.setattr(simulation, "current_environment", lambda: measured_with(git))
    with pytest.raises(StudyError, match=sentence):
        measured(toy(), clean=False)
    assert not kept_file("toy", "cpu", docs).exists()


def test_the_head_is_code_that_anybody_can_get() -> None:
    require_clean_code("toy", "cpu", [commit(current_environment().shoal_git).removesuffix("+")], ROOT)


def test_a_row_may_get_another_key(measured: Callable[..., Path], docs: Path) -> None:
    """Numbers belong to settings: a row that takes the key of another does not take its numbers."""
    study = toy()
    measured(study)
    rows = study.model_dump()["rows"]
    swapped = toy(
        rows={
            "apart": {"caption": "Apart", "settings": {"radius": 0.7}},
            "distant": {**rows["apart"], "key": "distant"},
            "close": rows["close"],
        }
    )
    table = {(row.row_key, row.metric): row.values for row in kept_table(swapped, "cpu", docs)}
    before = {(row.row_key, row.metric): row.values for row in kept_table(study, "cpu", docs)}
    assert table["distant", "max_norm"] == before["apart", "max_norm"]
    assert ("apart", "max_norm") not in table, "its settings are new"
    assert by_claim(swapped, docs)["apart pulls"].verdict is Verdict.MISSING


def test_a_renamed_row_keeps_its_rule_and_its_cells(measured: Callable[..., Path], docs: Path) -> None:
    study = toy()
    path = measured(study)
    content = study.model_dump()
    rows = {"distant": {**content["rows"]["apart"], "key": "distant"}, "close": content["rows"]["close"]}
    sides = {"left": ["distant", "two", "max_norm"], "right": ["close", "two", "max_norm"]}
    renamed = toy(rows=rows, paper_values={}, claims=[{"claim": "distant pulls", **sides}])
    assert by_claim(renamed, docs)["distant pulls"].later is False
    assert "have changed" not in system_page("cfl", [renamed], docs)
    measured(renamed, rows=["close"])
    after = json.loads(path.read_text())
    assert set(after["digests"]) == {"distant/two", "close/two"}, "the cell under its old key is not lost"
    assert by_claim(renamed, docs)["distant pulls"].later is False


def test_a_rule_on_preserved_cells_must_have_been_there_when_they_were_measured(
    measured: Callable[..., Path], docs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured(toy())
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "another"))
    sides = {"left": ["apart", "two", "max_norm"], "right": ["close", "two", "max_norm"]}
    later = toy(claims=[{"claim": "by far", **sides, "margin": 0.2}])
    measured(later, rows=["close"])
    assert by_claim(later, docs)["by far"].later, "nothing had run in that home, but its cell was known"


def test_cells_of_one_study_serve_another(
    measured: Callable[..., Path], docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(toy(), seeds=3)
    scales = {"cpu": {"about": "200 steps", "seeds": 2}, "paper": {"about": "more", "seeds": 2}}
    study = toy(name="other", percent=True, scales=scales, metrics=["max_norm"])
    monkeypatch.setattr(shared_cells, "study_names", lambda: ["toy", "other"])
    monkeypatch.setattr(shared_cells, "loaded", lambda name: toy())
    table = {(row.row_key, row.metric): row for row in kept_table(study, "cpu", docs)}
    own = {(row.row_key, row.metric): row for row in kept_table(toy(), "cpu", docs)}
    assert set(table) == {("apart", "max_norm"), ("close", "max_norm")}, "of the metrics that both have"
    assert table["apart", "max_norm"].of_seeds == (0, 1), "no more than the study's own rule has"
    first = own["apart", "max_norm"].values[0]
    assert table["apart", "max_norm"].values[0] == pytest.approx(100 * first), "in the unit of the study that asks"
    derived = toy(name="other", metrics=["split"], shared=["max_norm"])
    assert "max_norm" not in {row.metric for row in kept_table(derived, "cpu", docs)}, "only where both share it"
    entry = by_claim(study, docs)["apart pulls"]
    assert (entry.checked.interval is not None, entry.later) == (True, True), "its rule came after those runs"


def test_what_cannot_be_kept_is_refused(measured: Callable[..., Path], docs: Path) -> None:
    study = toy()
    with pytest.raises(StudyError, match="no result at scale 'paper' yet: shoal study toy --scale paper"):
        keep(study, "paper", docs)
    measured(study)
    noise = Image.effect_noise((1200, 1200), 100.0)
    noise.save(study_folder("toy", "cpu") / "seen.png")
    with pytest.raises(StudyError, match="at most 300,000 are kept"):
        keep(study, "cpu", docs)


def test_the_command_keeps_results_in_another_folder(
    measured: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(toy())
    monkeypatch.setattr("shoal_research.definition.load_study", lambda name: toy())
    with out.capture() as shown:
        claims_command.claims(kept="toy", docs=tmp_path / "elsewhere")
    assert load_kept("toy", "cpu", tmp_path / "elsewhere") == load_kept("toy", "cpu", tmp_path / "docs")
    assert "reproduced" in shown.get()
    assert not kept_file("toy", "cpu").exists()


def test_a_page_that_is_missing_or_has_no_mark_is_refused(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "study_names", lambda: ["toy"])
    monkeypatch.setattr(pages, "load_study", lambda name: toy())
    page = docs / "results" / "ssd.md"
    page.unlink()
    with pytest.raises(StudyError, match=r"results/ssd\.md is missing"):
        make_pages(docs)
    page.write_text("Words.\n")
    with pytest.raises(StudyError, match=r"results/ssd\.md lacks the line '<!-- What follows"):
        make_pages(docs)
    page.write_text(f"Words.\n\n{pages.MARK}\n\nA table of yesterday.\n")
    assert len(write_pages(docs)) == len(pages.PAGES) + 1
    assert write_pages(docs) == [], "nothing has changed"
    assert page.read_text().startswith(f"Words.\n\n{pages.MARK}\n\nMeans ±")
    assert "yesterday" not in page.read_text()
    monkeypatch.setattr(pages, "load_study", lambda name: toy(page="elsewhere"))
    with pytest.raises(StudyError, match="names the page 'elsewhere'; expected one of fedpnp"):
        make_pages(docs)
    assert verdicts.DOCS == ROOT / "research" / "docs"


def table_row(row: str, column: str, metric: str, mean: float, std: float = 0.1) -> StudyRow:
    """A number of a table."""
    return StudyRow(row, column, metric, mean, std, 3, None, row, column)


def test_metrics_stand_across_where_there_are_more_of_them_than_columns() -> None:
    """A column without numbers is left out, and a number that all seeds share has no deviation."""
    columns = {key: {"caption": key.upper(), "settings": {"distance": 2.0}} for key in ("one", "two", "none")}
    study = toy(columns=columns, shown=["max_norm", "mean_norm", "split"], paper_values={}, claims=[])
    there = [("apart", "one"), ("close", "one"), ("apart", "two")]
    rows = [table_row(row, column, metric, 2.0) for row, column in there for metric in ("max_norm", "split")]
    rows += [table_row(row, column, "mean_norm", 3.0, std=0.0001) for row, column in there]
    head, body = values_cells(study, "cpu", rows)
    assert head == ["", "max_norm", "mean_norm", "split", "seeds"]
    header, lines = values_cells(study, "cpu", [row for row in rows if row.column_key == "one"])
    assert header == ["ONE", *head[1:]]
    assert [line[0] for line in lines] == ["Apart", "Close"]
    cells = ["2.000 ± 0.100", "3.000", "2.000 ± 0.100", "3"]
    assert body == [["ONE: Apart", *cells], ["ONE: Close", *cells], ["TWO: Apart", *cells]]
    head, body = values_cells(toy(columns=columns, shown=["max_norm"], paper_values={}, claims=[]), "cpu", rows)
    assert head == ["max_norm", "ONE", "TWO", "seeds"]
    assert body[1] == ["Close", "2.000 ± 0.100", "", "3"]


def waiting(study: Study, words: str, scale: str = "paper") -> Entry:
    """A claim of a study in other words, as it stands before anything was measured."""
    claim = study.claims[-1].model_copy(update={"claim": words})
    return Entry(study, claim, scale, check(study, scale, claim, []), stale=False, later=False)


def test_claims_that_differ_in_a_case_and_a_number_share_a_line() -> None:
    study = toy()
    numbered = ["IID: within 3 of the paper's 66.5", "uneven: within 3 of the paper's 4.1"]
    found = [
        waiting(study, words) for words in (*numbered, "within 3 of the paper's 5", "A is above B", "IID: C", "all: C")
    ]
    assert cases_of_rules(found) == [
        "  - within 3 of the paper's 66.5 (IID), 4.1 (uneven), 5",
        "  - A is above B",
        "  - C: IID; all",
    ]


def test_scales_that_no_claim_waits_for_are_one_sentence() -> None:
    study = toy()
    others = [toy(name=name, claims=[]) for name in ("first", "second")]
    missing = [(others[0], "paper", []), (study, "paper", [waiting(study, "wide")]), (others[1], "paper", [])]
    assert list(missing_parts(missing)) == [
        "- `shoal study toy --scale paper`: not run: about 1 core minutes, 2 seeds\n  - wide",
        "Not run either: scale paper of `first`, `second`.",
    ]


def test_a_reason_that_studies_share_stands_once_on_their_page() -> None:
    """The first two say that they lack the control, the third that it fails."""
    found = []
    for note in ("no row measures it", "no row measures it", "control fails: it (+1 [-1, 3])"):
        study = toy()
        entry = waiting(study, "wide")
        checked = replace(entry.checked, verdict=Verdict.REGIME, note=note)
        found.append([replace(entry, checked=checked)])
    assert shared_reasons(found) == "no row measures it"
    assert shared_reasons(found[1:]) == "", "each gives another"
    assert "Out of regime" not in claims_tables(found[0], "no row measures it")
    assert claims_tables(found[2], "no row measures it").startswith("Out of regime: control fails: it (+1 [-1, 3]).")


def test_a_large_figure_is_kept_with_fewer_colours(tmp_path: Path) -> None:
    path = tmp_path / "points.png"
    tints = Image.merge("RGB", [Image.linear_gradient("L").resize((900, 900)).rotate(turn) for turn in (0, 90, 180)])
    tints.paste((255, 0, 0), (10, 10, 14, 14))
    tints.putpixel((400, 400), (0, 0, 0))
    tints.save(path, compress_level=0)
    assert path.stat().st_size > MAX_IMAGE_BYTES
    kept = image_to_keep(path)
    assert len(kept) <= MAX_IMAGE_BYTES
    with Image.open(io.BytesIO(kept)) as image:
        assert image.size == (900, 900)
        assert image.convert("RGB").getpixel((12, 12))[0] > 200
    tints.resize((90, 90)).save(path)
    assert image_to_keep(path) == path.read_bytes()
