"""Who may import whom, and what native code must not do. Read from the sources; nothing is run."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from jackfield.cli.new_backend import filled

ROOT = Path(__file__).parent.parent
CORE = ROOT / "core/src/jackfield"
KIT = ROOT / "conformance/src/jackfield_conformance"

# A module imports only those before it. A line is a rung of DESIGN; the order inside a line counts as well.
RUNGS = (
    "errors",
    "dtypes",
    "spec",
    "graph",
    "draws attributes findings op rules",
    "ops saved",
    "backend hookspecs",
    "reference faults simulated",
    "names numbering variables versions manifest hardware trust pins stages markers sweep probe",
    "discovery opened fields prints loading rehearsal fitting registry",
    "containment candidates updates search placement partition packing memory shard blueprint",
    "telling report timeline heap hosting crew upload store binding checks",
    "plan attempt session",
    "explain trace",
    "conformance feeds diff profile",
    "gguf",
    "__init__ cli __main__",
)
LADDER = [module for rung in RUNGS for module in rung.split()]

LAZY = {"__init__"}  # names for people; nothing but the command line stands behind it
PLUGIN_MAY_IMPORT = {"jackfield.backend"}
LATER_RUNGS = {"shard", "profile"}  # rungs that later releases fill

FORBIDDEN = re.compile(
    r"\b(?<!static_)(abort|_?exit|_Exit|quick_exit|assert|f?printf|f?puts|putchar|terminate)\s*\(|\bstd::(cout|cerr|clog)\b"
)
NATIVE = {".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".metal"}


def module_of(path: Path) -> str:
    return path.relative_to(CORE).parts[0].removesuffix(".py")


def own_imports(path: Path) -> list[tuple[str, int]]:
    """(module of the core, line) for every import of the core's own, wherever it stands."""
    depth = len(path.relative_to(CORE).parts)
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                package = ["jackfield", *path.relative_to(CORE).parts[:-1]][: depth - node.level + 1]
                module = ".".join([*package, module]) if module else ".".join(package)
            names = [f"{module}.{a.name}" for a in node.names] if module == "jackfield" else [module]
        else:
            continue
        for name in names:
            head, _, rest = name.partition(".")
            if head == "jackfield":
                first = rest.split(".")[0]
                found.append((first if first in LADDER else "__init__", node.lineno))
    return found


CORE_FILES = sorted(CORE.rglob("*.py"))
KIT_FILES = sorted(KIT.rglob("*.py"))


@pytest.mark.parametrize("path", CORE_FILES, ids=lambda p: str(p.relative_to(CORE)))
def test_core_imports_only_what_stands_above(path):
    name = module_of(path)
    allowed = set(LADDER[: LADDER.index(name) + 1])
    for other, line in own_imports(path):
        assert other in allowed, f"{path.name}:{line}: {name} imports {other}, which stands below it"


def test_every_module_is_on_the_ladder():
    there = {module_of(path) for path in CORE_FILES}
    assert there - set(LADDER) == set()
    assert set(LADDER) - there <= LATER_RUNGS


@pytest.mark.parametrize(
    "path", [p for p in CORE_FILES if module_of(p) not in LAZY], ids=lambda p: str(p.relative_to(CORE))
)
def test_no_import_gets_round_the_ladder(path):
    """Own modules are imported at the top, not in functions and not for type checkers alone."""
    tree = ast.parse(path.read_text())
    top = {node.lineno for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))}
    for name, line in own_imports(path):
        assert line in top, f"{path.name}:{line}: the import of {name} does not stand at the top"


def imported(path: Path) -> set[str]:
    return imports_of(path.read_text())


def imports_of(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
    return found


@pytest.mark.parametrize(
    "plugin", sorted([*ROOT.glob("plugins/*/src"), *ROOT.glob("examples/*/src")]), ids=lambda p: p.parent.name
)
def test_plugins_know_only_the_contract(plugin):
    for path in plugin.rglob("*.py*"):
        if path.suffix in (".py", ".pyi"):
            ours = {i for i in imported(path) if i.split(".")[0] == "jackfield"}
            assert ours <= PLUGIN_MAY_IMPORT, f"{path.name} imports {ours - PLUGIN_MAY_IMPORT}"


@pytest.mark.parametrize("kind", ["pure", "native"])
def test_templates_of_plugins_know_only_the_contract(kind):
    seen = 0
    for name, text in filled("acme", kind).items():
        if name.startswith("src/") and name.endswith((".py", ".pyi")):
            ours = {i for i in imports_of(text) if i.split(".")[0] == "jackfield"}
            assert ours <= PLUGIN_MAY_IMPORT, f"{name} imports {ours - PLUGIN_MAY_IMPORT}"
            seen += len(ours)
    assert seen


def test_llm_knows_only_the_public_names():
    for path in (ROOT / "llm/src").rglob("*.py"):
        ours = {i for i in imported(path) if i.split(".")[0] == "jackfield"}
        assert ours <= {"jackfield"}, f"{path.name} imports {ours - {'jackfield'}}"


def test_core_imports_no_wheel_that_stands_on_it():
    """Neither a plugin nor the conformance kit nor the language models."""
    for path in CORE_FILES:
        assert {name for name in imported(path) if name.startswith("jackfield_")} == set(), path.name


@pytest.mark.parametrize("path", KIT_FILES, ids=lambda p: str(p.relative_to(KIT)))
def test_the_kit_knows_the_core_and_no_other_wheel(path):
    """Scripts that it starts in processes of their own count as well."""
    scripts = [text for text, _ in literals(path) if re.search(r"^(from|import) ", text, re.MULTILINE)]
    for name in imported(path).union(*map(imports_of, scripts)):
        package, _, rest = name.partition(".")
        if package == "jackfield":
            assert rest.split(".")[0] in {*LADDER, ""}, name
        else:
            assert not package.startswith("jackfield_") or package == "jackfield_conformance", name


def test_the_kit_takes_no_private_name_of_the_core():
    """Nor does it import the core or itself anywhere but at the top."""
    for path in KIT_FILES:
        tree = ast.parse(path.read_text())
        for node in (n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))):
            names = [a.name for a in node.names] + getattr(node, "level", 0) * ["jackfield_conformance"]
            names += (getattr(node, "module", None) or "").split(".")
            if any(name.startswith("jackfield") for name in names):
                assert not [name for name in names if name.startswith("_")], f"{path.name}:{node.lineno}"
                assert node in tree.body, f"{path.name}:{node.lineno}: the import does not stand at the top"


def test_the_kit_needs_no_package_that_the_core_does_not():
    """`jackfield conform` runs where the core runs: only its plugin of pytest needs more."""
    for path in KIT_FILES:
        heads = {name.partition(".")[0] for name in imported(path)} - sys.stdlib_module_names
        more = {"pytest"} if path.name == "pytest.py" else set()
        assert heads <= {"jackfield", "jackfield_conformance", "numpy", "click", ""} | more, path.name


KINDS = {p.name for p in (ROOT / "plugins").iterdir() if (p / "pyproject.toml").exists()} | {"cuda", "metal", "hexagon"}
CLASS_WORD = "cpu"  # also a class of devices, whose name stands in one place
DEVICE_TEXT = re.compile(rf"(?:\S*[+,])?(?:{'|'.join(sorted(KINDS))})(?:[:+,]\S*)?")


def literals(path: Path) -> list[tuple[str, int]]:
    """Texts of a source that are no docstring."""
    tree = ast.parse(path.read_text())
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    constants = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in docs]
    return [(n.value, n.lineno) for n in constants if isinstance(n.value, str)]


@pytest.mark.parametrize("path", CORE_FILES + KIT_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_text_of_core_or_kit_is_a_kind_of_a_plugin(path):
    """Sentences may give examples; a literal that is a kind, a device or a selection may not be code."""
    for text, line in literals(path):
        if path.name == "names.py" and text == CLASS_WORD:
            continue
        assert not DEVICE_TEXT.fullmatch(text), f"{path.name}:{line}: {text!r}"


def test_what_counts_as_a_kind():
    assert all(
        DEVICE_TEXT.fullmatch(text) for text in ("cpu", "cuda:0", "cuda:0+cpu", "sim+cpu", "metal:emu", "hexagon:*")
    )
    assert not any(DEVICE_TEXT.fullmatch(text) for text in ("a kind such as cpu.", "cpus", "sim", "accel", ""))


def native_sources() -> list[Path]:
    files = [p for p in (ROOT / "plugins").rglob("*") if p.suffix in NATIVE and "build" not in p.parts]
    return sorted(files)


def code_of(text: str) -> str:
    """A source without comments and without the text inside quotes."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern, lambda m: "\n" * m.group().count("\n") or " ", text, flags=re.DOTALL)


@pytest.mark.parametrize("path", native_sources(), ids=lambda p: str(p.relative_to(ROOT / "plugins")))
def test_native_code_neither_aborts_nor_prints(path):
    for number, line in enumerate(code_of(path.read_text()).splitlines(), 1):
        assert not (found := FORBIDDEN.search(line)), f"{path.name}:{number}: {found.group()}"


@pytest.mark.parametrize(
    "line", ["abort();", "std::exit(1);", "assert(x > 0);", 'printf("x");', "std::cout << x;", "fputs(s, stderr);"]
)
def test_the_pattern_of_native_code_finds(line):
    assert FORBIDDEN.search(code_of(line))


@pytest.mark.parametrize(
    "line", ["static_assert(N > 0);", "// abort();", 'throw Error("exit(1)");', "snprintf(buffer, 9);", "reassert(x);"]
)
def test_the_pattern_of_native_code_spares(line):
    assert not FORBIDDEN.search(code_of(line))


def test_no_two_modules_of_the_tests_share_a_name():
    """pytest imports them by their bare names: of two the second is an error, and only where both are collected."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name not in ("conftest.py", "__init__.py")]
    assert {name for name in names if names.count(name) > 1} == set()
