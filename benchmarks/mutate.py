"""Do the tests notice a mistake? Random places are changed one at a time: python -m benchmarks.mutate N SEED

Each of N mutations is made in a copy of this clone, under build/mutations. The quick tests of the changed room run
first, then all other quick tests, up to the first failure. One line a mutation goes to build/mutations/SEED.jsonl; the
same command again does what is missing there. For numbers of a commit: SEED = the first eight digits of its hash.
"""

import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from copy import deepcopy
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Where mutations are drawn, all places alike, and the tests that know these files best.
ROOMS = {
    "residual": ["tests/probes", "tests/errors"],
    "probes": ["tests/probes", "tests/errors"],
    "effective_depth": ["tests/effective_depth"],
    "results": ["tests/results", "tests/sweep/test_run.py"],
    "run.py": ["tests/sweep/test_run.py", "tests/test_questions.py"],
    "data": ["tests/data", "tests/errors"],
    "remote": ["tests/remote"],
}
# Imported once, before the forks; the package itself is imported by each.
HEAVY = ("datasets", "huggingface_hub", "matplotlib.pyplot", "nbformat", "nnsight", "numpy", "openpyxl")
HEAVY += ("pandas", "papermill", "pytest", "scipy.stats", "torch", "transformers.models.llama.modeling_llama")
SECONDS = {"room": 1800, "all": 3600}  # then a mutation counts as caught; a test that hangs fails long before

SWAPPED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
SWAPPED |= {
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
SWAPPED |= {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
SWAPPED |= {ast.Pow: ast.Mult}


def words_only(tree):
    """Ids of the nodes that no test of numbers can see: messages, f-strings, annotations."""
    skipped = set()
    for node in ast.walk(tree):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.JoinedStr):
            parts.append(node)
        elif isinstance(node, ast.Raise):
            parts.append(node.exc)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("warn", "print"):
            parts += node.args
        skipped |= {id(below) for part in parts if part is not None for below in ast.walk(part)}
    return skipped


def is_path(node):
    """Whether a division joins a path: a string or an f-string on its right."""
    return isinstance(node.right, ast.JoinedStr) or isinstance(getattr(node.right, "value", None), str)


def changed(node):
    """(what is changed, the node's new text) for each mutation of one node."""
    new = deepcopy(node)
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            new.ops = [SWAPPED[type(op)]()]
            yield "comparison", new
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd()):
            yield "right operand dropped", new.left
        case ast.BinOp(op=ast.Div()) if is_path(node):
            pass
        case ast.BinOp(op=op) if type(op) in SWAPPED and not isinstance(getattr(node.left, "value", None), str):
            new.op = SWAPPED[type(op)]()
            yield "operator", new
        case ast.BoolOp(op=op):
            new.op = SWAPPED[type(op)]()
            yield "and/or", new
        case ast.UnaryOp(op=ast.Not() | ast.Invert()):
            yield "not dropped", new.operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant", ast.Constant(value * 1.5 + 0.01)
        case ast.IfExp():
            new.body, new.orelse = new.orelse, new.body
            yield "if/else swapped", new
        case ast.Subscript(slice=ast.Tuple(elts=[first, second]), ctx=ast.Load()):
            if ast.dump(first) != ast.dump(second):
                new.slice.elts.reverse()
                yield "indices swapped", new
        case ast.Slice(lower=lower, upper=upper, step=None) if (lower is None) != (upper is None):
            yield "end of a slice dropped", ":"
        case ast.Call(keywords=[*_, ast.keyword(arg=str(name))]):
            del new.keywords[-1]
            yield f"argument {name} dropped", new
        case ast.Dict(keys=[*_, ast.Constant(value=key)]):
            del new.keys[-1], new.values[-1]
            yield f"item {key} dropped", new
        case ast.AugAssign() | ast.Raise() | ast.Expr(value=ast.Call()):
            yield "line dropped", "pass"
        case ast.If(orelse=[]):
            yield "condition never true", node.test


def mutations(path):
    """Every mutation of a file: its line, what is changed, the bytes that go (start, end), and the new text."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    skipped = words_only(tree)
    for node in ast.walk(tree):
        for what, new in changed(node) if id(node) not in skipped else ():
            place = node
            if what == "condition never true":
                place, new = new, "(False)"
            start = starts[place.lineno - 1] + place.col_offset
            end = starts[place.end_lineno - 1] + place.end_col_offset
            text = new if isinstance(new, str) else f"({ast.unparse(new)})"
            old = source.encode()[start:end].decode()
            yield {"line": place.lineno, "what": what, "start": start, "end": end, "old": old, "new": text}


def drawn(tree, n, seed):
    """n mutations, at most one a line, each place of the rooms as likely as any other."""
    every = []
    for room in ROOMS:
        place = tree / "depth_lib" / room
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            every += [{"room": room, "file": str(path.relative_to(tree)), **one} for one in mutations(path)]
    chosen = {}
    for one in random.Random(seed).sample(every, len(every)):
        chosen.setdefault((one["file"], one["line"]), one)
        if len(chosen) == n:
            break
    return list(chosen.values())


def copied(folder):
    """A copy of the files that git knows, as they are now."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def failure(tree, options, seconds):
    """The first quick test that fails in a copy of the clone, in a forked process; None if all pass."""
    log = tree.with_suffix(".log")
    child = os.fork()
    if child == 0:
        os.setsid()
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        os.environ["PYTHONPATH"] = str(tree)
        for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
            del sys.modules[name]
        os._exit(sys.modules["pytest"].main(["-xq", "-p", "no:cacheprovider", "-m", "not slow", *options]))
    end = time.time() + seconds
    while not (done := os.waitpid(child, os.WNOHANG))[0] and time.time() < end:
        time.sleep(0.1)
    try:
        os.killpg(child, signal.SIGKILL)  # also what the tests started
    except ProcessLookupError:
        pass
    if not done[0]:
        os.waitpid(child, 0)
        return f"more than {seconds} seconds"
    if os.waitstatus_to_exitcode(done[1]) in (0, 5):  # 5: no tests there
        return None
    lines = log.read_text(errors="replace").splitlines()
    return next((line for line in lines if line.startswith(("FAILED", "ERROR"))), lines[-1] if lines else "it crashed")


def caught_by(tree, one):
    """The first test that fails with a mutation, those of its room first; None if none does."""
    path = tree / one["file"]
    source = path.read_bytes()
    rooms = ROOMS[one["room"]]
    try:
        path.write_bytes(source[: one["start"]] + one["new"].encode() + source[one["end"] :])
        others = [f"--ignore={room}" for room in rooms]
        return failure(tree, rooms, SECONDS["room"]) or failure(tree, others, SECONDS["all"])
    finally:
        path.write_bytes(source)


def main(n, seed):
    page = ROOT / f"build/mutations/{seed}.jsonl"
    tree = copied(page.with_suffix(""))
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}  # as tests/conftest.py, and before the imports
    for name in HEAVY:
        import_module(name)
    sys.modules["torch"].set_num_threads(1)
    if not page.exists() and (found := failure(tree, [], SECONDS["all"])) is not None:
        sys.exit(f"a test fails before anything is changed; fix it first: {found}")
    page.touch()
    known = {(row["file"], row["start"], row["new"]): row for row in map(json.loads, page.read_text().splitlines())}
    rows = []
    for one in drawn(tree, n, seed):
        row = known.get((one["file"], one["start"], one["new"]))
        if row is None or row["old"] != one["old"]:
            start = time.time()
            row = one | {"caught by": caught_by(tree, one), "seconds": round(time.time() - start)}
            with page.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        rows.append(row)
        said = row["caught by"] or "NO TEST NOTICES"
        print(f"{row['file']}:{row['line']}: {row['what']}: {row['old']} → {row['new']}: {said}", flush=True)
    shutil.rmtree(tree)
    print(f"{sum(row['caught by'] is not None for row in rows)} of {len(rows)} mutations are caught")


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[1].isdecimal():
        sys.exit("python -m benchmarks.mutate N SEED, such as: python -m benchmarks.mutate 50 217101c9")
    main(int(sys.argv[1]), sys.argv[2])
