"""Toy checkpoints and sample prompts that ship with the package."""

from pathlib import Path

HERE = Path(__file__).parent
TOYS = ("toy-4l", "toy-8l", "toy-16l", "toy-loop")
DATASETS = tuple(sorted(path.stem for path in HERE.glob("prompts/*.jsonl")))
SAMPLES = DATASETS + tuple(sorted(path.stem for path in HERE.glob("prompts/by_level/*.jsonl")))


def toy_path(name: str) -> Path:
    """Checkpoint folder of the toy model `name`, one of `TOYS`."""
    return HERE / name


def prompts_path(dataset: str, published: bool = False) -> Path:
    """The JSONL file with the sample rows of `dataset`, one of `SAMPLES`, in the Hub's schema.

    published: the data set's own first rows if its licence lets us ship them (GSM8K: MIT), else our own.
    """
    folders = ["by_level", *["published"] * published, ""]
    paths = (HERE / "prompts" / folder / f"{dataset}.jsonl" for folder in folders)
    return next(path for path in paths if path.is_file())


def choices_path(dataset: str) -> Path:
    """JSONL file of further questions of `dataset` with endings to choose from, which no prompts are made of."""
    return HERE / "prompts/choices" / f"{dataset}.jsonl"
