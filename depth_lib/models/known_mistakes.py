"""Models that some versions of transformers are known to compute wrongly."""

import re

import transformers
from transformers import PreTrainedConfig


def mistake_in(config: PreTrainedConfig) -> str:
    """What the installed transformers gets wrong about a model of this config; "" if nothing is known."""
    rope = str(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None))
    major, minor = map(int, re.findall(r"\d+", transformers.__version__)[:2])
    if config.model_type == "olmo3" and "yarn" in rope and major == 5 and minor <= 12:
        return (
            f"transformers {major}.{minor} applies YaRN to OLMo 3's sliding-window layers too: its numbers are wrong; "
            "install 5.13 or later"
        )
    return ""
