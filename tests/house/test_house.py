"""House rules as tests: import order, purity, sizes, names, no pickle, cold start."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "offbeat"
FILES = sorted(SOURCE.rglob("*.py"))

# Each room may import only rooms of a lower rank (and itself). `report` reads files; `testing` is for tests.
RANK = {
    "eventtime": 0,
    "records": 0,
    "errors": 0,
    "compiled": 0,
    "garbage": 0,
    "interrupts": 0,
    "durable": 0.5,
    "locks": 0.5,
    "configs": 1,
    "events": 1,
    "ports": 2,
    "task_settings": 0,
    "objectives": 0.5,
    "settings_sections": 1,
    "settings_rules": 2,
    "settings": 3,
    "theory": 4,
    "flow": 5,
    "loop": 6,
    "tasks": 7,
    "align": 8,
    "models": 8,
    "rollout": 8,
    "learner": 8,
    "backends": 9,
    "report": 9,
    "live": 10,
    "sim": 10,
    "serve": 10,
    "agents": 10.5,
    "wire": 11,
    "commands": 12,
    "cli": 13,
}
ONLY = {
    "align": set(),
    "market": {"eventtime", "align", "errors", "configs", "locks"},
    "report": {"records", "events", "errors", "settings", "ports", "learner"},
    "comparison": {"errors", "events", "locks", "settings", "settings_sections", "report", "backends"},
    "studies": {
        "eventtime",
        "records",
        "errors",
        "ports",
        "settings",
        "theory",
        "tasks",
        "models",
        "rollout",
        "learner",
        "locks",
        "align",
        "report",
        "backends",
    },
    "planning": {"eventtime", "errors", "records", "events", "settings", "theory", "report"},
    "diagnosis": {"errors", "events", "locks", "records", "settings", "theory", "report", "backends"},
    "testing": {"records", "ports", "errors", "events", "report"},
}
PURE = ("flow", "theory", "eventtime")
IMPURE = {"torch", "time", "asyncio", "random", "threading", "socket", "os", "pathlib", "sqlite3", "io", "numpy"}
BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager", "misc", "common", "base"}


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


ROOMS = sorted({room_of(file) for file in FILES})


def files_of(room: str) -> list[Path]:
    return [file for file in FILES if room_of(file) == room]


@cache
def text_of(file: Path) -> str:
    return file.read_text()


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(text_of(file))


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(file)))


@cache
def imports_of(file: Path) -> frozenset[str]:
    """Full dotted names of everything a file imports, at any depth."""
    found: set[str] = set()
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == "offbeat" else {module}
    return frozenset(found)


def rooms_imported(file: Path) -> set[str]:
    return {name.split(".")[1] for name in imports_of(file) if name.startswith("offbeat.")} - {"__version__"}


@pytest.mark.parametrize("room", ROOMS)
def test_import_order(room: str) -> None:
    for file in files_of(room):
        for other in rooms_imported(file) - {room} if room != "__init__" else ():
            may = f"{file.relative_to(SOURCE)} may not import {other}"
            if room in ONLY:
                assert other in ONLY[room], may
            elif room in {"cli", "commands", "wire"}:
                assert RANK.get(other, 0) < RANK[room], may
            else:
                assert other in RANK, may
                assert RANK[other] < RANK[room], may


LEAF = {"torch", "__future__", "offbeat.align"} | set(sys.stdlib_module_names)
"""What `align` is made of, so that its folder works in any project."""


@pytest.mark.parametrize("file", sorted((SOURCE / "align").glob("*.py")), ids=lambda f: f.name)
def test_align_is_a_leaf_of_torch(file: Path) -> None:
    """One file besides it knows a trainer's library, and nothing imports that file."""
    allowed = LEAF | ({"transformers"} if file.name == "trainer.py" else set())
    for name in imports_of(file):
        assert name.split(".")[0] in allowed or name.startswith("offbeat.align"), name
        assert name != "offbeat.align.trainer"


def test_no_import_cycles_between_files() -> None:
    names = {
        ".".join(("offbeat", *f.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): f for f in FILES
    }
    graph: dict[str, set[str]] = {}
    for name, file in names.items():
        guarded = {
            id(inner)
            for node in nodes_of(file)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            for inner in ast.walk(node)
        }
        graph[name] = set()
        for node in nodes_of(file):
            if isinstance(node, ast.ImportFrom) and id(node) not in guarded and node.module:
                graph[name] |= {node.module} & names.keys()
                graph[name] |= {f"{node.module}.{alias.name}" for alias in node.names} & names.keys()
        graph[name].discard(name)

    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_stay_pure(room: str) -> None:
    for file in (SOURCE / room).rglob("*.py"):
        impure = {name.split(".")[0] for name in imports_of(file)} & IMPURE
        assert not impure, f"{file.name} imports {impure}"


LONGER = {"events.py": 400, "backends/messages.py": 400}
"""One vocabulary is read in one place: every event, command and message is a few lines and a docstring."""


@pytest.mark.parametrize("room", ROOMS)
def test_sizes_and_docstrings(room: str) -> None:
    for file in files_of(room):
        name, text = str(file.relative_to(SOURCE)), text_of(file)
        most = LONGER.get(name, 300)
        assert len(text.splitlines()) <= most, f"{name} has at most {most} lines"
        for node in nodes_of(file):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 60, f"{name}: {node.name} is longer than 60 lines"
        docstring = ast.get_docstring(tree_of(file))
        if text.strip():
            assert docstring, f"{name}: a module says its role, its invariant and what it does not know"
            assert len(docstring.splitlines()) <= 15, name
        assert file.stem not in BANNED_NAMES, name


BROAD = {
    "backends/fork_server.py": 1,
    "backends/scorer_process.py": 1,
    "models/prompts.py": 1,
    "models/tokens.py": 1,
    "market/audit/host.py": 3,
    "report/trackers.py": 1,
    "serve/desk.py": 1,
    "serve/lane.py": 1,
    "serve/waiting.py": 1,
}
"""Broad excepts where foreign code runs, which may raise anything: rewards, datasets, tokenizers, pricing policies,
chat templates, engines, services; where a worker ends as an interpreter would; and where an error is only carried from
one task to another."""


@pytest.mark.parametrize("room", ROOMS)
def test_no_pickle_and_no_broad_except(room: str) -> None:
    for file in files_of(room):
        name, text = str(file.relative_to(SOURCE)), text_of(file)
        imported = {module.split(".")[0] for module in imports_of(file)}
        assert not {"pickle", "dill", "shelve", "marshal"} & imported, name
        assert "torch.load(" not in text, name
        assert "shell=True" not in text, name
        allowed = BROAD.get(name, int(room == "tasks"))
        broad = [
            node
            for node in nodes_of(file)
            if isinstance(node, ast.ExceptHandler)
            and (
                node.type is None
                or (isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"})
            )
        ]
        assert len(broad) <= allowed, f"{name}: broad except only where foreign code runs"


def test_the_main_loop_is_one_page() -> None:
    assert len((SOURCE / "loop.py").read_text().splitlines()) <= 80


@pytest.mark.parametrize(
    "module", ["offbeat.cli", "offbeat.settings", "offbeat.objectives", "offbeat.flow.scheduler", "offbeat.tasks"]
)
def test_cold_imports_bring_no_torch(module: str) -> None:
    heavy = "torch", "transformers", "plotly", "reasoning_gym"
    code = f"import sys, {module}; print(sorted(set({heavy}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def classes() -> list[tuple[str, Path]]:
    """Every class with its file."""
    return [(n.name, f) for f in FILES for n in nodes_of(f) if isinstance(n, ast.ClassDef)]


def test_no_two_errors_share_a_name() -> None:
    """Who catches one by its name catches that one."""
    found = [n for f in FILES for n in nodes_of(f) if isinstance(n, ast.ClassDef) and n.bases]
    errors = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    while True:
        more = {n.name for n in found if any(ast.unparse(b).split(".")[-1] in errors for b in n.bases)} - errors
        if not more:
            break
        errors |= more
    names = [n.name for n in found if n.name in errors]
    assert len(names) == len(set(names)), sorted(names)


def test_logs_are_closed_in_tests() -> None:
    """A connection in a `with` of its own is not: until Python looks for cycles it holds a lock on the file, and who
    reads the log of a killed run meanwhile misses its last commit."""
    tests = [file for where in ("tests", "runs") for file in (ROOT / where).rglob("*.py")]
    assert not [file for file in tests if re.search(r"with sqlite3\.connect\(", file.read_text())]


@pytest.mark.parametrize("file", ["records.py", "events.py", "errors.py", "ports.py"])
def test_every_noun_is_used(file: str) -> None:
    """A record, event, error or port that nobody names elsewhere says nothing of the program."""
    nouns = {name for name, where in classes() if where == SOURCE / file and not name.startswith("_")}
    assert nouns
    assert not nouns - {word for f in FILES if f != SOURCE / file for word in re.findall(r"\w+", text_of(f))}
