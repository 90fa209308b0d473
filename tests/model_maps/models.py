"""Pairs of tiny models whose maps are known, with a tokenizer, and a text to read."""

import random

import torch
import transformers as tf

from depth_lib.models import load
from tests import families
from tests.tiny_tokenizers import char_tokenizer


def wrapped(module, tokenizer=None):
    """A transformers model as load_model returns one."""
    return load.wrapped(module, tokenizer or char_tokenizer())


def words(n_documents, length=40, seed=0):
    """Documents of random letters."""
    draw = random.Random(seed)
    return ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz .,", k=length)) for _ in range(n_documents)]


def llama(seed=0, n_blocks=3, width=16, dtype=torch.float32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shape = families.SHAPE | {"hidden_size": width, "num_hidden_layers": n_blocks, "intermediate_size": 2 * width}
        module = tf.LlamaForCausalLM(tf.LlamaConfig(**shape))
        families.randomise(module)
    return module.to(dtype)


@torch.no_grad()
def padded(module):
    """Every block followed by one that is the identity."""
    n = module.config.num_hidden_layers
    deep = llama(n_blocks=2 * n, width=module.config.hidden_size)
    own = module.state_dict()
    for name, weight in deep.state_dict().items():
        parts = name.split(".")
        if parts[1] == "layers":
            parts[2] = str(int(parts[2]) // 2)
        weight.copy_(own[".".join(parts)])
    return families.make_identity(deep, set(range(1, 2 * n, 2)))
