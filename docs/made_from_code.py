"""Pages that are made from the code: methods and their index, the settings, the messages of errors, and docstrings.

made/all-methods.md    the methods by the question that each answers
made/methods/NAME.md   what a method is, its equations, its part of methods.md, and its settings
made/settings.md       the settings that all runs have
made/errors.md         every message that a ShoalError can have, by the file that raises it
made/api/ROOM.md       the docstrings of a room's modules
"""

from __future__ import annotations

import ast
import dataclasses
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from shoal.data.partition.schemes import SCHEMES
from shoal.engine.settings.run_settings import METHOD_SECTIONS, Settings
from shoal.methods.index import methods_by_question
from shoal.methods.registry import BUILT_IN as METHODS

ROOT = Path(__file__).parents[1]
ROOMS = (
    "core",
    "data",
    "models",
    "methods",
    "engine",
    "review",
    "lifecycle",
    "tasks",
    "sweeps",
    "flows",
    "api",
    "cli",
)
PAGES = {
    "fedpnp": ("FedPNP",),
    "fedcc": ("FedCC",),
    "fedbyolcc": ("FedBYOLCC",),
    "single": ("Single-training",),
    "ncc": ("NCC",),
    "kmeans": ("K-means on pixels",),
    "cfcl": ("CF-CL",),
    **dict.fromkeys(("uifca", "kfed", "ifca_flows", "clustergan"), ("UIFCA",)),
    **dict.fromkeys(("fedkmeans", "fedgmm"), ("Federated clustering of vectors",)),
    **dict.fromkeys(("cfl", "fedavg", "ifca", "local_only"), ("CFL",)),
    **dict.fromkeys(("ssd", "fedsimclr", "fedsimclr_kmeans", "fedbyol", "fedema", "fedx", "fedu2"), ("SSD",)),
}
"""How the part of methods.md begins that tells of a method."""
TAGS = ("method.name", "partition.kind")
"""Settings that choose a page or a table, and stand above it."""
LINK = re.compile(r"\]\((?![a-z]+:|#)")
"""The beginning of a link to a file."""


def write_pages(folder: Path, docs: Path) -> None:
    """Write every page.

    Args:
        folder: emptied first.
        docs: where methods.md and equations.md lie.
    """
    shutil.rmtree(folder, ignore_errors=True)
    pages = {"all-methods.md": index_page(), "settings.md": settings_page(), "errors.md": errors_page()}
    parts = parts_of((docs / "methods.md").read_text())
    equations = parts_of((docs / "equations.md").read_text())
    pages |= {f"methods/{name}.md": method_page(name, equations[name], parts) for name in METHODS}
    pages |= {f"api/{room}.md": api_page(room) for room in ROOMS}
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def parts_of(text: str) -> dict[str, str]:
    """The parts of a page by their headings of the second level."""
    found = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in found}


def index_page() -> str:
    """The methods of Shoal itself, below the question that each answers."""
    lines = ["# All methods", "", "| method | `method.name` | what it does |", "|---|---|---|"]
    for question, kinds in methods_by_question().items():
        lines.append(f"| **{question}** | | |")
        lines += [
            f"| {kind.title} | [`{kind.name}`](methods/{kind.name}.md) | {kind.about} |"
            for kind in kinds
            if kind.name in METHODS
        ]
    return "\n".join(lines) + "\n"


def method_page(name: str, equations: str, parts: dict[str, str]) -> str:
    """The page of a method."""
    kind = METHODS[name]
    about = first_paragraph(kind.__doc__ or "")
    own = [(head, body) for head, body in parts.items() if head.startswith(PAGES[name])]
    lines = [f"# {name}", about, f"    shoal run --set method.name={name}"]
    module = kind.__module__.replace(".", "/")
    lines.append(f"The code is in `{module}.py`. {labels_of(kind)}")
    lines += ["## What it computes", f"{from_below(equations)}\n\nSymbols: [equations](../../equations.md)."]
    for head, body in own:
        lines += [
            f"## {re.sub(r' *[(].*', '', head)}: the paper, and where this departs from it",
            from_below(body),
        ]
    lines += ["## Settings", table_of(METHOD_SECTIONS[name], "method")]
    return "\n\n".join(lines) + "\n"


def from_below(text: str) -> str:
    """The text of a page of docs/ with its links as made/methods/ needs them."""
    return LINK.sub(r"](../../", text)


def labels_of(kind: Any) -> str:
    """Whether a method learns from labels."""
    return "It learns from labels." if kind.learns_from_labels else "It learns without labels."


def first_paragraph(text: str) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join(text.strip().split("\n\n")[0].split())


def settings_page() -> str:
    """The settings of all runs, section by section, and of every partition scheme."""
    lines = [
        "# Settings",
        "Every key of a settings file, with its default. On the command line: `--set KEY=VALUE`. The settings of a "
        "method are on its page.",
    ]
    sections = {field.name: default for field in dataclasses.fields(Settings) if is_section(default := value_of(field))}
    run_fields = [field for field in dataclasses.fields(Settings) if field.name not in sections]
    lines += ["## Of the run", table(rows_of(run_fields, ""))]
    for name, section in sections.items():
        if name not in ("method", "partition"):
            lines += [f"## {name}", table_of(section, name)]
    lines.append("## partition")
    lines.append("`partition.kind` chooses the scheme.")
    for kind, scheme in SCHEMES.items():
        lines += [f"### {kind}", first_paragraph(scheme.__doc__ or ""), table_of(scheme, "partition")]
    return "\n\n".join(lines) + "\n"


def value_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a setting."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def is_section(value: Any) -> bool:
    """Whether the default of a setting is a section of settings."""
    return dataclasses.is_dataclass(value)


def table_of(section: Any, prefix: str) -> str:
    """The settings of a section as a table."""
    rows = rows_of(dataclasses.fields(section), f"{prefix}.")
    return table(rows) if rows else "None of its own."


def rows_of(fields: Iterable[dataclasses.Field[Any]], prefix: str) -> list[tuple[str, str, str]]:
    """Key, default and description of settings, those of a section inside the section included."""
    rows: list[tuple[str, str, str]] = []
    for field in fields:
        key = f"{prefix}{field.name}"
        value = value_of(field)
        if key in TAGS:
            continue
        if is_section(value):
            rows += rows_of(dataclasses.fields(value), f"{key}.")
        else:
            rows.append((f"`{key}`", default_text(value), field.metadata["description"].replace("|", "\\|")))
    return rows


def default_text(value: Any) -> str:
    """A default, as it is written in YAML."""
    if value is None:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def table(rows: list[tuple[str, str, str]]) -> str:
    """A table in Markdown."""
    head = ["| setting | default | what it is |", "|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)])


def errors_page() -> str:
    """Every message of an error, by file: what stands in braces is filled in."""
    lines = [
        "# Messages of errors",
        "Each is one sentence that names the thing, what was expected and what to do. Parts in braces are filled in "
        "where it happens. Search this page for a part of a message that has no names or numbers in it.",
    ]
    for room in ROOMS:
        found = [(path, list(messages(path))) for path in sorted((ROOT / "shoal" / room).rglob("*.py"))]
        told = [(path, own) for path, own in found if own]
        if told:
            lines.append(f"## {room}")
        for path, own in told:
            lines.append(f"### `{path.relative_to(ROOT).as_posix()}`")
            lines.append("\n".join(f"- {kind}: ``{text}``" for kind, text in own))
    return "\n\n".join(lines) + "\n"


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """The class and the text of every error of ours that a file raises."""
    kinds = {kind.__name__ for kind in all_kinds(ShoalError)}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            text = written(node.exc.args[0]) if node.exc.args else ""
            if node.exc.func.id in kinds and text:
                yield node.exc.func.id, " ".join(text.split()).replace("`", "'")


def written(node: ast.expr) -> str:
    """A string as the code has it, with what is filled in as {words}; empty where it is put together elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            written(part) if isinstance(part, ast.Constant) else f"{{{words(part)}}}" for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return written(node.left) + written(node.right)
    return ""


def words(node: ast.expr) -> str:
    """What is filled in, in a word: the last name of its expression."""
    names = [each.attr if isinstance(each, ast.Attribute) else each.id for each in ast.walk(node) if named(each)]
    return names[0].strip("_") if names else "..."


def named(node: ast.AST) -> bool:
    """Whether a part of an expression has a name."""
    return isinstance(node, ast.Attribute | ast.Name)


def all_kinds(kind: type) -> set[type]:
    """A class and all that are made from it, as far as they are imported."""
    return {kind, *(each for own in kind.__subclasses__() for each in all_kinds(own))}


def api_page(room: str) -> str:
    """The public classes and functions of a room with their docstrings, read from the source."""
    lines = [f"# {room}", "Docstrings as they stand in the code."]
    for path in sorted((ROOT / "shoal" / room).rglob("*.py")):
        tree = ast.parse(path.read_text())
        about = ast.get_docstring(tree)
        if about and path.name != "__init__.py":
            lines += [f"## `{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}`", block("text", about)]
            lines += described(tree.body, "###")
    return "\n\n".join(lines) + "\n"


def described(body: list[ast.stmt], level: str) -> list[str]:
    """Headings, signatures and docstrings of what is public in a module or a class."""
    found = []
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            about = ast.get_docstring(node)
            if about is None:
                continue
            found += [f"{level} {node.name}", block("python", signature(node)), block("text", about)]
            if isinstance(node, ast.ClassDef):
                found += described(node.body, f"{level}#")
    return found


def signature(node: ast.ClassDef | ast.FunctionDef) -> str:
    """How something is called: the line that defines it."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    back = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"def {node.name}({ast.unparse(node.args)}){back}"


def block(language: str, text: str) -> str:
    """Text as it stands."""
    return f"````{language}\n{text}\n````"
