"""Who imports whom, and what follows from it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from tests.structure.source import Source, room_of

Graph = Mapping[str, Iterable[str]]


def names_imported(
    node: ast.AST, package: list[str], is_typing: bool = False
) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether it is below `if TYPE_CHECKING:`) of every import, wherever it is: at
    the top or in a function. `from a import b` is `a.b`, which may be a module or a name of one."""
    if isinstance(node, ast.Import):
        yield from ((name.name, is_typing) for name in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        for name in node.names:
            yield ".".join([*base, *filter(None, [node.module]), name.name]), is_typing
    elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for part in node.body:
            yield from names_imported(part, package, True)
        for part in node.orelse:
            yield from names_imported(part, package, is_typing)
    else:
        for part in statements_of(node):
            yield from names_imported(part, package, is_typing)


def statements_of(node: ast.AST) -> Iterator[ast.AST]:
    """The statements directly in a statement, and the branches that have some: a thirtieth of the
    nodes of a file, and all that can import."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        part = getattr(node, name, ())
        if isinstance(part, list):  # a lambda's body is none
            yield from part


def imports(source: Source) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Who imports whom, as paths: (what runs, what runs and what type checkers read).

    A file that calls `import_module` also imports the modules whose full names are among its
    strings. To import a.b.c runs a/__init__ and a/b/__init__ first: that is an edge where such an
    `__init__` imports something of ours itself, and where it is not above the importer too, since
    it has then begun before the importer did."""
    modules = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in source.trees
    }
    running: dict[str, set[str]] = {path: set() for path in source.trees}
    named: dict[str, set[str]] = {path: set() for path in source.trees}
    for path, tree in source.trees.items():
        found = list(names_imported(tree, path.split("/")[:-1]))
        if "import_module(" in source.texts[path]:
            strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
            found += [(text, False) for text in strings if isinstance(text, str) and "." in text]
        for name, is_typing in found:
            module = name if name in modules else name.rpartition(".")[0]
            if module in modules and modules[module] != path:
                named[path].add(modules[module])
                if not is_typing:
                    running[path].add(modules[module])
    direct = {path: set(targets) for path, targets in running.items()}
    for path, targets in direct.items():
        for target in targets:
            folders = target.split("/")[:-1]
            above = {"/".join([*folders[:n], "__init__.py"]) for n in range(1, len(folders) + 1)}
            running[path] |= {
                init for init in above
                if direct.get(init) and not path.startswith(init.removesuffix("__init__.py"))
            }  # fmt: skip
    return running, named


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one node, the largest first (Kosaraju)."""
    back: dict[str, set[str]] = defaultdict(set)
    for node, targets in graph.items():
        for target in targets:
            back[target].add(node)
    order = [node for tree in _visit(graph, graph) for node in tree]
    found = [sorted(tree) for tree in _visit(back, reversed(order)) if len(tree) > 1]
    return sorted(found, key=lambda circle: (-len(circle), circle))


def _visit(graph: Graph, starts: Iterable[str]) -> list[list[str]]:
    """Depth first from each start that was not reached before: what it reaches, in the order in
    which the visits end."""
    seen: set[str] = set()
    trees: list[list[str]] = []
    for start in starts:
        tree: list[str] = []
        stack = [] if start in seen else [(start, iter(sorted(graph.get(start, ()))))]
        seen.add(start)
        while stack:
            following = next((target for target in stack[-1][1] if target not in seen), None)
            if following is None:
                tree.append(stack.pop()[0])
            else:
                seen.add(following)
                stack.append((following, iter(sorted(graph.get(following, ())))))
        trees.append(tree)
    return trees


def between_rooms(graph: Graph) -> dict[str, set[str]]:
    """The graph of the rooms (see `room_of`)."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for path, targets in graph.items():
        rooms[room_of(path)] |= {room_of(target) for target in targets} - {room_of(path)}
    return rooms


def with_one_importer(source: Source, named: Graph) -> dict[str, str]:
    """Modules that exactly one file of the product imports, be it only for type checkers, and that
    lie in the same folder as it; `__init__.py` is none of them, but may be the importer."""
    importers: dict[str, list[str]] = defaultdict(list)
    for path, targets in named.items():
        for target in targets:
            importers[target].append(path)
    return {
        path: by[0]
        for path, by in sorted(importers.items())
        if len(by) == 1 and not path.endswith("/__init__.py")
        and path.rpartition("/")[0] == by[0].rpartition("/")[0]
    }  # fmt: skip
