"""Models that some versions of transformers are known to compute wrongly."""

import transformers
from packaging.version import Version
from transformers import PreTrainedConfig


def mistake_in(config: PreTrainedConfig) -> str:
    """What the installed transformers gets wrong about a model of this config; "" if nothing is known."""
    rope = str(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None))
    version = Version(transformers.__version__)
    if config.model_type == "olmo3" and "yarn" in rope and Version("5.0") <= version < Version("5.13"):
        return (
            f"transformers {version}, like all from 5.0 to 5.12, applies YaRN to OLMo 3's sliding-window layers too: its "
            "numbers are wrong; install transformers 5.13 or later"
        )
    return ""
