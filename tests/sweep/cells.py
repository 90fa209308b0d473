"""A parameters cell as the notebook hands it to a run, of the smallest toy and the smallest dataset."""

from depth_lib.results.schemas import ARTIFACTS

ANY_DATASET = [probe for probe, row in ARTIFACTS.items() if not row.by_level]


def parameters(out):
    """The cell's names and values, with results in this folder."""
    return {
        "MODEL": "toy-4l",
        "MODEL_ID": "toy-4l",
        "REVISION": None,
        "DTYPE": "float32",
        "QUANTIZATION": None,
        "DEVICE_MAP": None,
        "REMOTE": False,
        "DATASET": "addition",
        "N_EXAMPLES": 2,
        "SOURCE": "embedded",
        "PROBES": ANY_DATASET,
        "SEED": 1,
        "OUT": str(out),
    }
