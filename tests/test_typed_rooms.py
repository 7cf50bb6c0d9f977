"""What crosses rooms is typed: no dictionary with fixed string keys does, by the annotations of what rooms import."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.sources import ROOT, module, rooms, sources
from tests.test_rooms import STAIRS

DICTIONARIES = {"dict", "Mapping", "MutableMapping", "Dict"}
VALUES = {"Any", "object"}
"""A dictionary from text to one of these may hold anything: its keys are the fields of a record that has no type."""
JSON_METHODS = {"to_json", "from_json"}
"""A record's own JSON form, which goes to a file or over the wire and is read back strictly."""
REASONS: dict[str, tuple[str, ...]] = {
    "a record as JSON, on its way to a file or back": (
        "core.records.record_to_json",
        "core.seal.sealed",
        "core.seal.unsealed",
        "engine.store.codec.read_sealed",
        "engine.store.codec.write_sealed",
    ),
    "settings as a user gives them, before they are checked, or as YAML shows them": (
        "engine.settings.defaults.changed_settings",
        "engine.settings.defaults.default_settings",
        "engine.settings.merge.merge",
        "engine.settings.run_settings.expand_names",
        "engine.settings.run_settings.flatten",
        "engine.settings.run_settings.load_settings",
        "engine.settings.run_settings.make_settings",
        "engine.settings.run_settings.drop_unset",
        "engine.settings.run_settings.resolve",
        "engine.settings.wrong_settings.explain",
        "engine.store.method_choice.MethodChoice.settings",
        "methods.auto.Rule.settings",
        "methods.auto.Rule.space",
        "api.searching.FoundSettings.best",
        "sweeps.search.definition.SearchDefinition.settings",
        "sweeps.search.definition.make_search",
        "sweeps.search.result.best_settings",
    ),
    "JSON that is compared with other JSON and not read by its keys": (
        "sweeps.search.definition.SearchDefinition.identity",
    ),
    "facts beside tensors: each method has its own, and declares them": (
        "methods.contract.base.Server.facts",
        "methods.contract.base.Server.next",
        "methods.contract.message.Message.facts",
        "methods.cfl.measure.ClusterMeasure.entry",
        "methods.cfl.state.CFLState.facts",
        "methods.cfl.tree.Tree.facts",
        "methods.cfl.tree.Tree.from_facts",
    ),
    "facts of an event: each kind has its own": ("engine.store.run_events.Event.facts",),
    "rows of a table, whose columns are the metrics of a method": ("engine.store.tables.Row",),
    "what belongs to one data set or scheme alone, as its reader or maker says it": (
        "data.intake.own_store.Batch.extra",
        "data.sets.built_in.LoadedSet.extra",
        "data.sets.elsewhere.SiteSet.shared",
        "data.sets.prepared.Manifest.extra",
        "data.intake.client_table.known_tables",
        "data.partition.table.Partition.settings",
    ),
}
"""What may be such a dictionary all the same, by why its keys are data, or why it is JSON."""
ALLOWED = {name for names in REASONS.values() for name in names}

Imports = dict[str, set[str]]


def room_of(name: str) -> str:
    """The room of a module, given its dotted name; in engine and review the room inside."""
    parts = name.split(".")
    inner = len(parts) > 3 and parts[1] in STAIRS and parts[2] in STAIRS[parts[1]]
    return ".".join(parts[1 : 3 if inner else 2])


def modules() -> dict[str, ast.Module]:
    """The syntax trees of all modules, by dotted name."""
    paths = [path.relative_to(ROOT) for room in rooms() for path in sources(room)]
    return {module(path): ast.parse((ROOT / path).read_text()) for path in paths}


def module_aliases(tree: ast.Module, modules: Iterable[str]) -> dict[str, str]:
    """The modules that a module imports as a whole, by the names that it gives them."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node, alias in imported_names(tree)
        if f"{node.module}.{alias.name}" in modules
    }


def imported_names(tree: ast.Module) -> Iterator[tuple[ast.ImportFrom, ast.alias]]:
    """Every name that a module imports from another, with the statement that imports it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from ((node, alias) for alias in node.names)


def imported_elsewhere(trees: dict[str, ast.Module]) -> Imports:
    """The names of each module that a module of another room imports, or reads from the imported module."""
    found: Imports = defaultdict(set)
    for importer, tree in trees.items():
        aliases = module_aliases(tree, trees)
        uses = [(str(node.module), alias.name) for node, alias in imported_names(tree)]
        uses += [
            (aliases[node.value.id], node.attr)
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases
        ]
        for owner, name in uses:
            if owner in trees and f"{owner}.{name}" not in trees and room_of(owner) != room_of(importer):
                found[owner].add(name)
    return found


def is_open(annotation: ast.AST | None) -> bool:
    """Whether an annotation holds a dictionary whose keys are text and whose values may be anything."""
    for node in ast.walk(annotation) if annotation is not None else ():
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in DICTIONARIES:
            key, value = node.slice.elts if isinstance(node.slice, ast.Tuple) else (None, None)
            if isinstance(key, ast.Name) and isinstance(value, ast.Name) and key.id == "str" and value.id in VALUES:
                return True
    return False


def open_parts(name: str, node: ast.stmt) -> Iterator[str]:
    """The parts of a definition whose annotations are open: itself, its public methods and its fields."""
    if any(is_open(annotation) for annotation in annotations(node)):
        yield name
    if isinstance(node, ast.ClassDef):
        for part in node.body:
            own = name_of(part)
            if own and (not own.startswith("_") or own == "__init__") and own not in JSON_METHODS:
                yield from open_parts(f"{name}.{own}", part)


def annotations(node: ast.stmt) -> list[ast.AST | None]:
    """The annotations of a function or a variable itself; of an assignment its value, which may be a type."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        return [node.returns, *(argument.annotation for argument in arguments)]
    if isinstance(node, ast.AnnAssign):
        return [node.annotation]
    return [node.value] if isinstance(node, ast.Assign) else []


def name_of(node: ast.stmt) -> str | None:
    """The name that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    target = node.target if isinstance(node, ast.AnnAssign) else None
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    return target.id if isinstance(target, ast.Name) else None


def annotated(node: ast.stmt) -> set[str]:
    """The names in the annotations of a definition: what they name is handed on with it."""
    found: set[str] = set()
    for part in ast.walk(node):
        for annotation in (getattr(part, "annotation", None), getattr(part, "returns", None)):
            if isinstance(annotation, ast.AST):
                found |= {name.id for name in ast.walk(annotation) if isinstance(name, ast.Name)}
    return found


def crossing(trees: dict[str, ast.Module]) -> Imports:
    """The names of each module that other rooms import, and those that these hand on."""
    origins = {
        importer: {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in trees
            for alias in node.names
        }
        for importer, tree in trees.items()
    }
    found: Imports = defaultdict(set)
    waiting = [(owner, name) for owner, names in imported_elsewhere(trees).items() for name in names]
    while waiting:
        owner, name = waiting.pop()
        if name in found[owner]:
            continue
        found[owner].add(name)
        for node in trees[owner].body:
            if name_of(node) == name:
                waiting += [origins[owner].get(other, (owner, other)) for other in annotated(node)]
    return found


def open_crossings(trees: dict[str, ast.Module]) -> set[str]:
    """What crosses rooms and may hold any dictionary, as `module.name` or `module.Class.part`."""
    found = set()
    for owner, names in crossing(trees).items():
        for node in trees[owner].body:
            if (own := name_of(node)) in names:
                found |= set(open_parts(f"{owner.removeprefix('shoal.')}.{own}", node))
    return found


def test_no_dictionary_with_string_keys_crosses_a_room() -> None:
    found = open_crossings(modules())
    assert found - ALLOWED == set(), "make it a frozen dataclass, or say in REASONS why its keys are data"
    assert ALLOWED - found == set(), "these do not cross any more: remove them from REASONS"


def crossings_of(source: str, importer: str) -> set[str]:
    """What is found where one room has this module, and another imports from it."""
    return open_crossings({"shoal.core.made": ast.parse(source), "shoal.data.reader": ast.parse(importer)})


def test_every_way_to_hand_on_a_dictionary_is_found() -> None:
    reader = "from shoal.core.made import thing"
    ways = {
        "def thing() -> dict[str, Any]: ...": {"core.made.thing"},
        "def thing(rows: list[Mapping[str, object]] | None = None): ...": {"core.made.thing"},
        "async def thing(*, about: dict[str, Any]): ...": {"core.made.thing"},
        "thing: dict[str, Any] = {}": {"core.made.thing"},
        "thing = dict[str, Any]": {"core.made.thing"},
        "class thing:\n    part: dict[str, Any]": {"core.made.thing.part"},
        "class thing:\n    def part(self) -> dict[str, Any]: ...": {"core.made.thing.part"},
        "class thing:\n    def __init__(self, about: dict[str, Any]): ...": {"core.made.thing.__init__"},
        "class Made:\n    part: dict[str, Any]\ndef thing() -> Made: ...": {"core.made.Made.part"},
        "def thing() -> dict[str, float]: ...": set(),
        "def thing() -> dict[int, Any]: ...": set(),
        "class thing:\n    def to_json(self) -> dict[str, Any]: ...": set(),
        "class thing:\n    def _part(self) -> dict[str, Any]: ...": set(),
        "def other() -> dict[str, Any]: ...": set(),
    }
    assert {source: crossings_of(source, reader) for source in ways} == ways
    whole = "from shoal.core import made\nmade.thing()"
    assert crossings_of("def thing() -> dict[str, Any]: ...", whole) == {"core.made.thing"}
