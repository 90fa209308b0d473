"""The house: what imports what, typed signatures, and what loading the package costs."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.glob("depth_lib/**/*.py")}
MODULES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}
ROOMS = MODULES.keys() - {"depth_lib", "depth_lib.__main__"}  # a command, which nothing imports
STOREYS = (  # bottom to top; rooms of one storey may use each other, as long as there is no circle
    {"params", "progress", "public", "files", "shapes", "hub", "data", "embedded"},
    {"residual"},
    {"models"},
    {"remote"},
    {"session"},
    {"results"},
    {"probes", "lenses"},
    {"effective_depth"},
    {"figures"},
    {"report", "comparison", "training", "papers", "pruning", "depths", "maps"},
    {"run"},
    {"sweep"},
)
STOREY = {room: storey for storey, rooms in enumerate(STOREYS) for room in rooms}
UNTYPED = {"residual"}  # it travels, and imports torch and itself only; so do `measure_…` and what these call


@cache
def tree(module):
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imported(module, nodes):
    """The package's modules that these import statements name."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for name in node.names:
                yield f"{base}.{name.name}" if f"{base}.{name.name}" in MODULES else base
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def room(module):
    return module.split(".")[1]


def storey(module):
    return STOREY[room(module)]


def test_every_room_has_its_storey():
    assert {room(module) for module in ROOMS} == STOREY.keys()


def test_nothing_looks_up():
    used = [(module, name) for module in ROOMS for name in imported(module, ast.walk(tree(module))) if name in ROOMS]
    assert [pair for pair in used if storey(pair[1]) > storey(pair[0])] == []


def test_no_import_goes_in_a_circle():
    graph = {module: {*imported(module, tree(module).body)} & ROOMS - {module} for module in ROOMS}
    TopologicalSorter(graph).prepare()


def test_what_the_package_imports_is_asked_for_by_name():
    names = {name.split(".")[0] for m in MODULES for name in imported(m, ast.walk(tree(m))) if name not in MODULES}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"]
    for extra in ("sweep", "report", "gguf", "quantization"):
        asked = asked + project["optional-dependencies"][extra]
    asked = {_plain(re.match(r"[\w.-]+", line)[0]) for line in asked} | {"depth-lib"}
    used = names - sys.stdlib_module_names - {"google", "bitsandbytes", "IPython"}  # a kernel's own
    known = packages_distributions()
    assert {name for name in used if not {_plain(one) for one in known[name]} & asked} == set()


def _plain(name):
    return name.lower().replace("_", "-")


def functions(module):
    """Functions and methods of a module, without those inside functions."""
    classes = [node for node in tree(module).body if isinstance(node, ast.ClassDef)]
    for node in [*tree(module).body, *(node for one in classes for node in one.body)]:
        if isinstance(node, ast.FunctionDef):
            yield node


def parameters(function):
    return function.args.posonlyargs + function.args.args + function.args.kwonlyargs


def _travels(module, function):
    """Whether a function runs where the model is: what probes measure, and what that calls."""
    import depth_lib as dl

    return function.name.startswith("measure_") or (room(module) == "probes" and function.name not in dir(dl))


def test_every_public_signature_is_typed():
    untyped = []
    for module in (m for m in ROOMS if room(m) not in UNTYPED):
        for function in (f for f in functions(module) if not f.name.startswith("_") and not _travels(module, f)):
            named = [p for p in parameters(function) if p.arg not in ("self", "cls")]
            if not function.returns or not all(p.annotation for p in named):
                untyped.append(f"{module}.{function.name}")
    assert untyped == []


def test_loading_the_package_takes_no_torch_and_no_time():
    code = "import time; start = time.perf_counter(); import depth_lib, sys; print(time.perf_counter() - start); "
    code += "assert not {'torch', 'numpy', 'pandas', 'nnsight', 'transformers'} & set(sys.modules)"
    seconds = [float(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT)) for _ in range(3)]
    assert min(seconds) < 0.5


def test_tab_completion_shows_the_public_names_only():
    import depth_lib as dl

    assert all(callable(getattr(dl, name)) or inspect.ismodule(getattr(dl, name)) for name in dir(dl) if name[0] != "_")
    assert "load_results" in dir(dl) and "importlib" not in dir(dl)
