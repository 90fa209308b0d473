"""A params file for a model of one's own, with defaults that are right for a real one."""

from pathlib import Path

from ..params import ParamsError, find_model, registry_names
from .plan import own_dtype

FILE = """\
MODEL: {name}  # also the folder of its results
MODEL_ID: {model_id}  # Hub id, checkpoint folder or GGUF file
REVISION: null  # the newest; a commit hash pins it
DTYPE: {dtype}  # the checkpoint's own
QUANTIZATION: null  # or 8bit, 4bit: needs a GPU and bitsandbytes
DEVICE_MAP: auto  # over all GPUs and then the CPU
REMOTE: false  # true: on NDIF
# SOURCE is what each dataset's params file says: the Hub's prompts.
TRAINING: null  # base, instruct, R1-distill …: how tables group models
BILLIONS: null  # parameters, in billions: how tables sort models
"""


def write_params(name: str, model_id: str, folder: str = "mine") -> Path:
    """Write params/models/<folder>/<name>.yaml in the working directory; ParamsError if the name is taken."""
    if Path(name).name != name:
        raise ParamsError(f"{name} cannot be the name of a folder of results; give a short one and --model-id {name}")
    if name in registry_names():
        raise ParamsError(f"there is a model {name} ({find_model(name)['MODEL_ID']}); choose another name")
    path = Path("params", "models", folder, f"{name}.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FILE.format(name=name, model_id=model_id, dtype=own_dtype(model_id)), encoding="utf-8")
    return path
