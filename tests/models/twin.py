"""A tiny twin: a model's architecture with small sizes and random weights, which can be measured anywhere.

Layers, their kinds and all switches of the config stay; widths, heads, experts and the vocabulary shrink in proportion,
so that what the config divides, multiplies or adds still fits.
"""

import itertools
import re
from collections.abc import Callable

import torch
from transformers import PreTrainedConfig, PreTrainedModel

WIDTH, HEADS, VOCABULARY = 64, 4, 128
_DROPPED = ("quantization_config", "distributed_config", "dtype")  # of how a checkpoint is held
_WIDTHS = ("hidden_size", "n_embd", "d_model", "embedding_dim", "dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
# What the fields of a config mean is told by their names, the first that fits.
_TOKEN = re.compile(r"_token_id$|_token_index$")
_KEPT = re.compile(
    r"layer(?!_input)|_ids?$|_index$|index_topk|position|window|chunk|kernel|_conv$|conv1d|factor|period|offset|cycles|"
    r"expand|scale|scaling|multipl|_step|interval|pattern|bits|pretraining|seed|LABEL|stride|patch|length|_len$|theta|"
    r"type_vocab|n_positions|n_ctx|local|hc_|altup_|loop|base$|log_"
)
_HEAD_WIDTH = re.compile(r"head_?(dim|size)|dim_head|d_head|d_kv|kv_channels|rotary_dim|d_rel")
_EXPERTS = re.compile(r"expert|topk|top_k|moe_k$|n_group$|kv_n_heads")
_HEAD_COUNT = re.compile(r"head|num_query_groups|n_groups$|ngroups$")


def twin(config: PreTrainedConfig, build: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    """The twin of a model that `build(config, dtype=...)` builds: in float32 on the CPU.

    Raises whatever transformers raises for a config that cannot be made small.
    """
    data = {name: value for name, value in config.to_dict().items() if name not in _DROPPED}
    small = type(config).from_dict(_shrunk(data))
    attention = {"attn_implementation": config._attn_implementation} if config._attn_implementation else {}
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        model = build(small, dtype=torch.float32, **attention).eval().requires_grad_(False)
        _randomise(model)
    return model


@torch.no_grad()
def _randomise(model):
    """Moves every weight away from its first value, so that no norm, bias, gate or scale is neutral.

    Of buffers only single numbers, which are scales that a checkpoint brings; others are computed, as decays are.
    """
    scales = [buffer for buffer in model.buffers() if buffer.numel() == 1 and buffer.is_floating_point()]
    for weight in [*model.parameters(), *scales]:
        weight.add_(torch.randn_like(weight) * (0.2 if weight.dim() < 2 else weight.shape[-1] ** -0.5))


def _shrunk(data):
    """The fields of a config with small sizes."""
    hidden = next((data[name] for name in _WIDTHS if data.get(name)), WIDTH)
    n_heads = next((data[name] for name in _HEADS if data.get(name)), HEADS)
    heads = min(HEADS, n_heads) / n_heads
    return {name: _scaled(name, value, WIDTH / hidden, heads) for name, value in data.items()}


def _scaled(name, value, width, heads):
    """A field's value where widths are multiplied by `width` and numbers of heads by `heads`."""
    if isinstance(value, dict):
        if name.endswith("config"):
            return _shrunk(value)
        return {key: _scaled(key, one, width, heads) for key, one in value.items()}
    if name == "mrope_section":  # shares of half a head, whose sum has to fit
        ends = [round(end * width / heads) for end in itertools.accumulate(value)]
        return [end - start for start, end in itertools.pairwise([0, *ends])]
    if isinstance(value, list | tuple):
        return [_scaled(name, one, width, heads) for one in value]
    if type(value) is not int:
        return value
    if name in ("chunk_size", "mamba_chunk_size"):  # of a scan, which pads to it
        return min(value, 8)
    if _TOKEN.search(name):
        return value if value < VOCABULARY else 3
    if _KEPT.search(name):
        return value
    if "vocab" in name:
        return VOCABULARY
    if _HEAD_WIDTH.search(name):
        return max(2, 2 * round(value * width / heads / 2))
    if _EXPERTS.search(name) and "size" not in name and "dim" not in name:
        return min(value, 1 if name == "topk_group" else 2 if re.search("group|per_tok|top|moe_k", name) else 4)
    if _HEAD_COUNT.search(name):
        return max(1, round(value * heads))
    return max(8, 8 * round(value * width / 8)) if value > 8 else value
