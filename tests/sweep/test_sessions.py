"""Sessions in a terminal, as text: what a command prints, how it ends, what it runs.

sessions/*.txt is read as it stands: a line that begins with `$ ` is typed, those below it are printed. After a command
stand the notebooks that it executed, with every parameter that is not the default, and its exit status unless that is
0. `SESSIONS=new pytest tests/sweep/test_sessions.py` writes what is printed now; review the diff.

depth-lib runs in this process and its notebooks are stand-ins (study.py), all other lines are the shell's.
"""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from depth_lib.files import hold
from depth_lib.params import Params
from depth_lib.run import Run
from tests.marks import others_slow
from tests.sweep.study import ENVIRONMENT, Command, calls_in, new_study

SESSIONS = Path(__file__).parent / "sessions"
NAMES = sorted(file.stem for file in SESSIONS.glob("*.txt"))
DEFAULT = json.loads(Params().model_dump_json())
VARYING = {  # what another machine, or another hour, prints otherwise
    r"process \d+ on [\w.-]+": "process N on HOST",
    r"(done in|after) \d\d:\d\d": r"\1 00:00",
    r"-\d{13}\b": "-<milliseconds>",
    r"\b[0-9a-f]{16}\b": "<hash>",
    re.escape(f"{sys.executable} -m"): "python -m",
    r"(?m)^make: .*\n": "",
}


def ran(call):
    """How a notebook was executed, in a line."""
    name = f"{call.pop('DATASET')} × {call.pop('MODEL')}" if "MODEL" in call else "table"
    if call.get("MODEL_ID") == name.rpartition(" ")[2]:
        del call["MODEL_ID"]
    if call.pop("threads") != os.environ.get("OMP_NUM_THREADS"):
        name += " with its own threads"
    words = {"GPU": call.pop("gpu")} | {key: value for key, value in call.items() if value != DEFAULT.get(key, ...)}
    return f"[ran {name}: {' '.join(f'{key}={json.dumps(value)}' for key, value in words.items() if value)}]\n"


class Terminal:
    """type(line) is what the line prints in a study's folder."""

    def __init__(self, folder, monkeypatch, capsys):
        self.study, self.patch = new_study(folder), monkeypatch
        self.command = Command(self.study, monkeypatch, capsys)
        self.held = contextlib.ExitStack()

    def type(self, line):
        word, *words = shlex.split(line)
        if word == "export":
            self.patch.setenv(*words[0].split("=", 1))
        elif word == "unset":
            self.patch.delenv(words[0], raising=False)
        elif word == "lock":  # as another process does
            (self.study / words[0]).parent.mkdir(parents=True, exist_ok=True)
            self.held.enter_context(hold(self.study / words[0]))
        elif word == "depth-lib" and words[-2:] == ["|", "sh"]:
            listed = self._run(words[:-2]).output.splitlines()
            return "".join(self.type(f"depth-lib {shlex.join(shlex.split(one)[1:])}") for one in listed)
        elif word == "depth-lib":
            done = self._run(words)
            runs = "".join(map(ran, calls_in(self.study)))
            return f"{done.output}{done.error}{runs}" + f"[exit {done.status}]\n" * bool(done.status)
        else:
            how = {"cwd": self.study, "capture_output": True, "text": True, "env": ENVIRONMENT | os.environ}
            done = subprocess.run(["bash", "-c", line], **how)
            runs = "".join(sorted(map(ran, calls_in(self.study))))  # side by side
            return done.stdout + done.stderr + runs + f"[exit {done.returncode}]\n" * bool(done.returncode)
        return ""

    def _run(self, words):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            done = self.command(*words)
        said = [str(one.message) for one in warned if one.category is UserWarning]
        done.output += "".join(f"Warning: {text}\n" for text in said if "or is damaged" not in text)
        return done


@pytest.mark.parametrize("name", others_slow(NAMES, {*NAMES} - {"make"}))
def test_a_session_goes_as_it_is_written(name, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/study/.venv/bin:{os.environ['PATH']}")
    monkeypatch.setattr(Run, "depths", lambda run: [f"depths of {run.name}"])  # there are no tensors
    monkeypatch.setattr("depth_lib.lenses.files.load_lens", lambda path: None)
    (tmp_path / "study").mkdir()
    terminal, said = Terminal(tmp_path / "study", monkeypatch, capsys), []
    file = SESSIONS / f"{name}.txt"
    written = file.read_text(encoding="utf-8")
    with terminal.held:
        for line in (line for line in written.splitlines() if line.startswith(("$ ", "# "))):
            printed = terminal.type(line[2:]) if line[0] == "$" else ""
            for varying, plain in VARYING.items():
                printed = re.sub(varying, plain, printed)
            printed = printed.replace(f"{terminal.study}/", "").replace(str(terminal.study), "STUDY")
            said.append("\n" * (line[0] == "#" and bool(said)) + f"{line}\n{printed}")
    if os.environ.get("SESSIONS") == "new":
        file.write_text("".join(said), encoding="utf-8")
    assert "".join(said) == written
