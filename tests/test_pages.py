"""Pages for users: every line of Python and every command on them runs, and prints what the page says.

The blocks of a page run from top to bottom, in an empty folder; all Python of a page shares its variables.

    ```python               code; a ```text block below it is what it prints, pictures below it are what it draws
    ```console              lines after `$ ` are typed, the others are what they print; `[exit 1]` is an exit status
    ```yaml title="x.yaml"  a file of this name
    ```bash                 commands that no test runs, all of them in NOT_RUN

`...` stands for anything, as in a doctest. `PAGES=new pytest tests/test_pages.py` writes what is printed and drawn
into the pages; review the diff.
"""

import contextlib
import doctest
import io
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from PIL import Image

from tests.marks import others_slow
from tests.remote.loopback import MISSING

if not MISSING:
    from tests.remote.loopback.fixture import KEY, hurried, loopback  # noqa: F401 (fixtures)

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
FOR_CONTRIBUTORS = {"architectures.md", "coverage.md", "oracles.md", "precision.md", "speed.md"}
ON_SERVER = "ndif.md"
HERE = [name for name in PAGES if name not in FOR_CONTRIBUTORS and name != ON_SERVER]
QUICK = {"responses.md"}  # a second; the others are slow
REAL = "SmolLM2-135M-Instruct"  # on README.md and quickstart.md
KEPT = {  # what a command wrote that takes minutes, and where: tests/real compares it with the model
    "responses.md": (
        "responses/responses.pt",
        "outputs/gsm8k-question-chat/SmolLM2-135M-Instruct/logitlens_12exps@generate=64,per_token=True.pt",
    )
}
NOT_RUN = {  # the beginning of each command that no test runs, and why
    "git clone": "needs the repository's address",
    "pip install": "would change the environment of the tests",
    "make demo": "tests/sweep runs it",
    "depth-lib run SmolLM2-135M-Instruct gsm8k --source sample --part": "takes minutes; see KEPT",
    "make test": "runs the tests",
    "depth-lib sweep --list > runs.txt": "needs a cluster",
    "printf '#!/bin/bash": "the same",
    "sbatch": "the same",
    "ndif": "needs a GPU; tests/remote/whole_server starts this server without",
    "NDIF_HOST=": "needs that server",
}
VARYING = {  # from one machine, or hour, to the next
    r"\b\d\d:\d\d\b": "00:00",
    r"\b[0-9a-f]{16}\b": "HASH",
    r"process \d+ on [\w.-]+": "process N on HOST",
    r"'train_[^}]*": "",
    r"[^\s]*/(?=depth_lib/embedded/)": "",
    r"-\d{13}\b": "-TIME",
}
WRITES = os.environ.get("PAGES") == "new"
KINDS = ("python", "console", "bash", "text", "yaml", "json")
BLOCK = re.compile(
    rf"^```(?P<kind>{'|'.join(KINDS)})(?: title=\"(?P<file>[^\"]+)\")?\n(?P<text>.*?)^```$"
    r"(?:\n\n```text\n(?P<said>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"^\$ (?P<typed>.*)\n(?P<said>(?:(?!\$ ).*\n)*)", re.MULTILINE)
PICTURE = re.compile(r"^!\[[^\]]*\]\(([^)]+)\)", re.MULTILINE)


class Page:
    """A page, run in a folder; `differences` has what is not as it says, `printed` what belongs in its text."""

    def __init__(self, name, folder, stands_for=None):
        self.path, self.folder, self.stands_for = PAGES[name], folder, stands_for or {}
        self.text = self.path.read_text(encoding="utf-8")
        self.differences, self.printed, self.variables = [], [], {"__name__": "__main__"}

    def run(self, commands=True):
        plt.close("all")  # of the tests before
        for block in BLOCK.finditer(self.text):
            if block["file"]:
                file = self.folder / block["file"]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block["text"], encoding="utf-8")
            elif block["kind"] == "python":
                self.compare(block["text"], block["said"] or "", self.python(block["text"]), block.span("said"))
                below = self.text[block.end() :]
                end = BLOCK.search(below)
                self.draws(block["text"], PICTURE.findall(below[: end and end.start()].split("\n#")[0]))
            elif block["kind"] == "console" and commands:
                for command in COMMAND.finditer(block["text"]):
                    if not command["typed"].startswith(tuple(NOT_RUN)):
                        span = [block.start("text") + place for place in command.span("said")]
                        self.compare(command["typed"], command["said"], self.shell(command["typed"]), span)
        return self

    def python(self, code):
        """What the code prints; on the page of servers in a process of its own, which reads the Hub's address."""
        if self.path.name == ON_SERVER:
            return self.shell(f"python - 2> {self.folder}/errors <<'END'\n{code}\nEND\n")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(self.with_stand_ins(code), self.path.name, "exec"), self.variables)
        return printed.getvalue()

    def shell(self, command):
        """What the command prints, and its exit status unless it is 0."""
        how = {"cwd": self.folder, "env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(["bash", "-c", self.with_stand_ins(command)], text=True, **how)
        return done.stdout.replace(f"{self.folder}/", "") + f"[exit {done.returncode}]\n" * bool(done.returncode)

    def with_stand_ins(self, code):
        for name, stand_in in self.stands_for.items():
            code = code.replace(name, stand_in)
        return code

    def compare(self, code, said, printed, span):
        if not as_said(said, printed):
            self.differences.append(f"{code.rstrip()}\n-- prints:\n{printed}-- and the page says:\n{said}")
            self.printed.append((*span, printed))

    def draws(self, code, pictures):
        """Hold the figures that are open against the pictures below the code."""
        figures = [plt.figure(number) for number in plt.get_fignums()]
        if len(figures) != len(pictures):
            self.differences.append(f"{code}-- draws {len(figures)} figures, and the page shows {pictures}")
        elif WRITES:
            for figure, path in zip(figures, pictures, strict=True):
                write_png(figure, self.path.parent / path)
        plt.close("all")

    def write(self):
        """Write what is printed now into the page."""
        text = self.text
        for start, end, printed in reversed(self.printed):
            if start >= 0:  # -1: the page has no place for it
                text = text[:start] + printed.strip("\n") + "\n" + text[end:]
        self.path.write_text(text, encoding="utf-8")


def as_said(said, printed):
    """Whether this is what is printed, but for empty lines at its ends."""
    for varying, plain in VARYING.items():
        said, printed = (re.sub(varying, plain, text).strip("\n") for text in (said, printed))
    return doctest.OutputChecker().check_output(said, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


def write_png(figure, path):
    """A drawing of few colours, and so of few bytes."""
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=130)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def environment():
    """That of somebody who types a command in this Python's environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "MAKE", "MFLAGS"))}
    ours = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "MPLBACKEND": "agg", "TQDM_DISABLE": "1"}
    return kept | ours


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def holds(page):
    if WRITES:
        page.write()
    else:
        assert not page.differences, "\n\n".join(page.differences)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", others_slow(HERE, QUICK))
def test_a_page_prints_and_draws_what_it_says(name, folder):
    if name in KEPT:
        kept, place = KEPT[name]
        (folder / place).parent.mkdir(parents=True)
        shutil.copy(ROOT / "docs" / kept, folder / place)
    holds(Page(name, folder).run())


def test_the_readmes_python_runs_on_a_toy_too(folder):
    page = Page("README.md", folder, {REAL: "toy-4l"}).run(commands=False)
    assert not [one for one in page.differences if "-- draws" in one]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(MISSING), reason=f"needs {MISSING}: make ndif")
def test_the_page_on_ndif_prints_what_it_says_on_a_server_of_its_protocol(folder, request, monkeypatch):
    host = request.getfixturevalue("loopback").host
    request.getfixturevalue("hurried")
    for name, value in {"NDIF_HOST": host, "HF_ENDPOINT": host, "HF_HUB_OFFLINE": "0", "NDIF_API_KEY": KEY}.items():
        monkeypatch.setenv(name, value)
    holds(Page(ON_SERVER, folder).run())


def test_each_command_that_no_test_runs_is_on_a_page_and_those_of_bash_are_such():
    typed = {}
    for name in (*HERE, ON_SERVER):
        for block in BLOCK.finditer(PAGES[name].read_text(encoding="utf-8")):
            lines = block["text"].splitlines()
            commands = [line for line in lines if block["kind"] == "bash"]
            assert all(command.startswith(tuple(NOT_RUN)) for command in commands), name
            typed |= dict.fromkeys(commands + [line[2:] for line in lines if line.startswith("$ ")])
    assert [words for words in NOT_RUN if not any(command.startswith(words) for command in typed)] == []


def test_every_block_of_a_page_for_users_is_of_a_kind_that_is_looked_at():
    for name in (*HERE, ON_SERVER):
        fences = re.findall(r"^```(.*)$", PAGES[name].read_text(encoding="utf-8"), re.MULTILINE)
        assert {fence.split(" ")[0] for fence in fences[::2]} <= {*KINDS}, name
