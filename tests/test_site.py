"""The documentation as a site: what is made from the code is the code's, and Sphinx has nothing to say against it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
from latex2mathml.converter import convert

from shoal.core.errors import ShoalError
from shoal.engine.settings.run_settings import METHOD_SECTIONS, Settings, flatten, make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.registry import BUILT_IN as METHODS
from tests.sources import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    found = importlib.util.spec_from_file_location("made_from_code", DOCS / "made_from_code.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(maker: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "made"
    maker.write_pages(folder, DOCS)
    return folder


def keys(page: Path) -> set[str]:
    return set(re.findall(r"^\| `([\w.]+)` \|", page.read_text(), re.MULTILINE))


def test_every_method_has_a_row_of_the_index(pages: Path) -> None:
    text = (pages / "all-methods.md").read_text()
    for name, kind in METHODS.items():
        assert text.index(kind.question) < text.index(
            f"| {kind.title} | [`{name}`](methods/{name}.md) | {kind.about} |"
        )


@pytest.mark.long
@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_with_its_settings_and_departures(pages: Path, name: str) -> None:
    page = pages / "methods" / f"{name}.md"
    assert keys(page) == {f"method.{key.name}" for key in fields(METHOD_SECTIONS[name]) if key.name != "name"}
    assert "where this departs from it" in page.read_text(), "no part of methods.md tells of it"
    for path in re.findall(r"`(shoal/methods/[\w/]+\.py)`", page.read_text()):
        assert (ROOT / path).exists()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_its_equations_which_can_be_drawn(pages: Path, name: str) -> None:
    text = (pages / "methods" / f"{name}.md").read_text()
    part = text.partition("## What it computes")[2].partition("\n## ")[0]
    assert re.sub(r"\W", "", part.partition("Symbols:")[0]), "no part of equations.md tells of it"
    for block, inline in re.findall(r"\$\$(.+?)\$\$|\$(.+?)\$", part, re.DOTALL):
        drawn = convert(block or inline)
        # What the converter does not know it draws as its name.
        assert "\\" not in drawn, f"{block or inline}: {drawn}"


def test_no_page_has_the_name_of_one_that_the_site_makes_itself() -> None:
    own = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert not own & {"search", "genindex", "py-modindex"}, "it would be written over"


def test_no_equation_is_of_a_method_that_is_not_there(maker: ModuleType) -> None:
    assert set(maker.parts_of((DOCS / "equations.md").read_text())) == set(METHODS)


def test_every_setting_of_a_run_stands_on_the_page_with_its_default(pages: Path) -> None:
    found = keys(pages / "settings.md")
    settings = make_settings({})
    wanted = {key for key in flatten(settings) if not key.startswith(("method.", "partition.kind"))}
    assert wanted <= found | {f"{item.name}.kind" for item in fields(Settings)}
    text = (pages / "settings.md").read_text()
    assert "| `rounds` | none |" in text
    assert "| `data.name` | `digits` | name of a built-in data set" in text


def test_messages_of_errors_are_found_by_their_words(pages: Path, home: Path) -> None:
    with pytest.raises(ShoalError) as error:
        RunFolder.find("nowhere")
    text = (pages / "errors.md").read_text()
    messages = re.findall(r"^- \w+: ``(.*)``$", text, re.MULTILINE)
    patterns = [".*".join(map(re.escape, re.split(r"\{[^}]*\}", message))) for message in messages]
    said = str(error.value).replace("`", "'")
    assert any(re.fullmatch(pattern, said, re.DOTALL) for pattern in patterns if len(pattern) > 30)
    assert len(messages) > 150


def test_docstrings_are_there_as_they_stand(pages: Path) -> None:
    text = (pages / "api" / "methods.md").read_text()
    assert "def client_update(self, message: Message, client: Client) -> Update" in text
    assert "_" not in "".join(re.findall(r"^#+ (_?)", text, re.MULTILINE)), "what is private is no interface"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_needs_no_net(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"([^\"]*)\"", page.read_text())
        assert not [address for address in loaded if address.startswith(("http", "//"))], page
    assert (tmp_path / "made" / "methods" / "fedpnp.html").read_text().count("<math") > 10
