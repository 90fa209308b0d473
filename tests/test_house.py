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

import pytest

ROOT = Path(__file__).parent.parent
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.glob("depth_lib/**/*.py")}
MODULES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}
STOREYS = (  # bottom to top; rooms of one storey may use each other, as long as there is no circle
    {"params", "progress", "files", "hub", "data", "embedded"},
    {"probes"},
    {"models"},
    {"remote"},
    {"session"},
    {"api", "model_maps"},
    {"results"},
    {"effective_depth"},
    {"figures"},
    {"report"},
    {"sweep"},
)
STOREY = {room: storey for storey, rooms in enumerate(STOREYS) for room in rooms}
UNTYPED = {"probes"}  # they travel, and import torch and each other only


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
    """A command, which nothing imports, stands on top of the house."""
    return len(STOREYS) if module.endswith(".__main__") else STOREY[room(module)]


def test_every_room_has_its_storey():
    assert {room(module) for module in MODULES if module != "depth_lib"} == STOREY.keys()


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"depth_lib"}))
def test_nothing_looks_up(module):
    used = {name for name in imported(module, ast.walk(tree(module))) if name in MODULES and name != "depth_lib"}
    assert not {name for name in used if storey(name) > storey(module)}


def test_no_import_goes_in_a_circle():
    graph = {module: set(imported(module, tree(module).body)) & MODULES.keys() - {"depth_lib"} for module in MODULES}
    TopologicalSorter({module: used - {module} for module, used in graph.items()}).prepare()


def test_what_the_package_imports_is_asked_for_by_name():
    names = {name.split(".")[0] for m in MODULES for name in imported(m, ast.walk(tree(m))) if name not in MODULES}
    known = packages_distributions()
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = asked["optional-dependencies"]
    asked = asked["dependencies"] + [
        line for name in ("sweep", "report", "gguf", "quantization") for line in extras[name]
    ]
    asked = {_plain(re.match(r"[\w.-]+", line)[0]) for line in asked} | {"depth-lib"}
    used = {
        name for name in names - sys.stdlib_module_names if name not in ("google", "bitsandbytes", "IPython")
    }  # a kernel's own
    assert not {name for name in used if not {_plain(one) for one in known[name]} & asked}


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


@pytest.mark.parametrize("module", sorted(m for m in MODULES if "." in m and room(m) not in UNTYPED))
def test_every_public_signature_is_typed(module):
    public = [function for function in functions(module) if not function.name.startswith("_")]
    untyped = [f.name for f in public for p in parameters(f) if not p.annotation and p.arg not in ("self", "cls")]
    assert not untyped + [function.name for function in public if not function.returns]


def test_loading_the_package_takes_no_torch_and_no_time():
    code = "import time; start = time.perf_counter(); import depth_lib, sys; print(time.perf_counter() - start); "
    code += "assert not {'torch', 'numpy', 'pandas', 'nnsight', 'transformers'} & set(sys.modules)"
    seconds = [float(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT)) for _ in range(3)]
    assert min(seconds) < 0.5


def test_tab_completion_shows_the_public_names_only():
    import depth_lib as dl

    assert all(callable(getattr(dl, name)) or inspect.ismodule(getattr(dl, name)) for name in dir(dl) if name[0] != "_")
    assert "load_results" in dir(dl) and "importlib" not in dir(dl)
