"""A probe is whole: whoever adds one and forgets a step of CONTRIBUTING.md is told which."""

import ast
import re
from pathlib import Path

import pytest
import torch

import depth_lib as dl
from depth_lib.figures import KINDS, kinds_of
from depth_lib.results.schemas import ARTIFACTS, mismatch
from tests.calls import EVERY

TESTS = Path(__file__).parents[1]
FILES = sorted(path for path in (TESTS.parent / "depth_lib/probes").glob("*.py") if path.stem != "__init__")
NAMES = [path.stem for path in FILES]
CALLED = {"integrated_gradients": "gradients"}  # in tests/calls.py, by another name than its own
NO_ROW = {"choice_accuracy"}  # of no run: `block_accuracy` is its probe
ONES_OWN = {"block_orders"}  # orders of one's own, which have no figure
OTHER_ORACLES = {"answer_lens", "block_accuracy", "choice_accuracy"}  # beside their tests
SHAPE = re.compile(r"([A-Z](\+1)?|1|5)( ([A-Z](\+1)?|1|5))*")


@pytest.mark.parametrize("name", NAMES)
def test_a_probe_has_its_row_its_figure_its_call_its_oracle_and_all_parts_of_its_docstring(name):
    oracles, compared, of_lenses = (
        "\n".join(path.read_text(encoding="utf-8") for path in (TESTS / room).glob("*.py") if path != Path(__file__))
        for room in ("oracles", "probes", "lenses")
    )
    lacking = {
        f"dl.{name}": name not in dl.__all__,
        "@with_origin": "\n@with_origin\ndef " not in (TESTS.parent / f"depth_lib/probes/{name}.py").read_text("utf-8"),
        "a row of ARTIFACTS in results/schemas.py": name not in ARTIFACTS.keys() | NO_ROW,
        "a row of KINDS in figures/kinds.py": name not in {kind.probe for kind in KINDS.values()} | NO_ROW,
        "a call in tests/calls.py": CALLED.get(name, name) not in {call.partition(",")[0] for call in EVERY},
        "an oracle in tests/oracles": f"def {name}(" not in oracles and name not in OTHER_ORACLES,
        "a comparison in tests/probes": f"dl.{name}(" not in compared + of_lenses,
        "a line in CHANGELOG.md": name not in (TESTS.parent / "CHANGELOG.md").read_text("utf-8"),
    }
    doc = getattr(dl, name).__doc__
    parts = ("Returns\\b", "Raises ", "Sources?: ", "Cost: ")
    lacking |= {f"{part!r} in its docstring": not re.search(part, doc) for part in parts}
    assert [step for step, is_lacking in lacking.items() if is_lacking] == []


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_ROW])
def test_its_result_is_what_its_row_says_in_float32_whatever_the_default_and_is_drawn(name, toy):
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")  # as "cuda" would be: another one than the results'
    try:
        calls = [call for call in EVERY if call.partition(",")[0] == CALLED.get(name, name)]
        modes = [call for call in calls if call in ("local_effects, future", "local_effects, all")] or calls[:1]
        result = {key: value for call in modes for key, value in EVERY[call](toy).items()}
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    shapes = ARTIFACTS[name].shapes
    assert mismatch(name, result) is None
    for key, value in result.items():
        if isinstance(value, torch.Tensor) and key != "token_ids":
            assert key in shapes and SHAPE.fullmatch(shapes[key]), f"{key}: {shapes.get(key, 'in no row')}"
            assert value.dtype == torch.float32, f"{key} is {value.dtype}"
            for letter, size in zip(shapes[key].split(), value.shape, strict=True):
                assert letter[0] != "L" or size == 4 + letter.endswith("+1"), f"{key} {[*value.shape]}: {shapes[key]}"
    assert kinds_of(name, result) or name in ONES_OWN, "no row of KINDS draws this result"
    read = {key for kind in KINDS.values() if kind.probe == name and not callable(kind.read) for key in kind.read}
    assert read <= shapes.keys(), f"a row of KINDS reads {read - shapes.keys()}, which {name} does not return"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_what_runs_where_the_model_is_uses_torch_and_residual_alone_and_never_stops_a_trace(path):
    tree, homes = ast.parse(path.read_text(encoding="utf-8")), {}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = f"{'.' * node.level}{node.module or ''}" if isinstance(node, ast.ImportFrom) else ""
            homes |= {name.asname or name.name.partition(".")[0]: home or name.name for name in node.names}
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name.startswith("measure_"):
            inner = [node for node in ast.walk(function) if isinstance(node, ast.Name | ast.Attribute)]
            used = {homes[node.id] for node in inner if isinstance(node, ast.Name) and node.id in homes}
            assert {home for home in used if not re.match(r"torch\b|\.\.residual\b|\.\w", home)} == set(), function.name
            assert not any(isinstance(node, ast.Attribute) and node.attr == "stop" for node in inner), function.name
