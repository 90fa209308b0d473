"""What each family adds to its residual stream and how it makes logits of it, as transformers 5.23 computes it."""

import copy
from contextlib import contextmanager
from operator import attrgetter

import torch

# model_type -> (blocks, attention contribution within a block, MLP contribution within a block, final norm)
LLAMA_LIKE = ("model.layers", "self_attn", "mlp", "model.norm")
GPT_LIKE = ("transformer.h", "attn", "mlp", "transformer.ln_f")
PLACES = {
    # norms stand after attention and MLP and before the addition: the post-norms' outputs are added
    "olmo2": ("model.layers", "post_attention_layernorm", "post_feedforward_layernorm", "model.norm"),
    "olmo3": ("model.layers", "post_attention_layernorm", "post_feedforward_layernorm", "model.norm"),
    "gemma2": ("model.layers", "post_attention_layernorm", "post_feedforward_layernorm", "model.norm"),
    "gemma3_text": ("model.layers", "post_attention_layernorm", "post_feedforward_layernorm", "model.norm"),
    # here post_attention_layernorm is what the others call pre_feedforward_layernorm
    "glm4": ("model.layers", "post_self_attn_layernorm", "post_mlp_layernorm", "model.norm"),
    "gpt2": GPT_LIKE,
    "gpt_neo": GPT_LIKE,
    "gptj": GPT_LIKE,
    "gpt_neox": ("gpt_neox.layers", "attention", "mlp", "gpt_neox.final_layer_norm"),
    "phi": ("model.layers", "self_attn", "mlp", "model.final_layernorm"),
    "falcon": ("transformer.h", "self_attention", "mlp", "transformer.ln_f"),
    # attention and MLP are handed the residual and return the sum: only their last projections give what is added
    "bloom": ("transformer.h", "self_attention.dense", "mlp.dense_4h_to_h", "transformer.ln_f"),
    # no MLP module: the block itself applies fc1, the activation and fc2
    "opt": ("model.decoder.layers", "self_attn", "fc2", "model.decoder.final_layer_norm"),
}
for _name in "llama mistral qwen2 qwen3 mixtral qwen3_moe phi3 cohere granite stablelm gpt_oss".split():
    PLACES[_name] = LLAMA_LIKE


def places(model):
    """(list of blocks, attention path, MLP path, final norm) of `model`."""
    blocks, attention, mlp, norm = PLACES[model.config.model_type]
    return list(model.get_submodule(blocks)), attention, mlp, attrgetter(norm)(model)


def is_parallel(model):
    """Whether the MLP reads the block's input instead of what attention has already been added to."""
    config = model.config
    if config.model_type in ("gptj", "phi", "cohere"):
        return True
    if config.model_type in ("gpt_neox", "stablelm"):
        return config.use_parallel_residual
    if config.model_type == "falcon":
        return config.new_decoder_architecture or config.parallel_attn
    return False


def first(output):
    """The hidden states of a module that may return other things beside them."""
    return output[0] if isinstance(output, tuple | list) else output


def with_first(output, hidden):
    """`output` with its hidden states replaced."""
    return type(output)([hidden, *output[1:]]) if isinstance(output, tuple | list) else hidden


@contextmanager
def hooks(*registered):
    """Hooks that are gone afterwards."""
    try:
        yield
    finally:
        for hook in registered:
            hook.remove()


def run(model, input_ids):
    """The model's own logits [T, V] of one prompt, a list or vector of ids."""
    return model(input_ids=torch.as_tensor(input_ids)[None], use_cache=False).logits[0]


def block_states(model, input_ids):
    """(h [L+1, T, d], logits [T, V]): what enters each block and what leaves the last."""
    blocks = places(model)[0]
    states = []

    def entering(_, args, kwargs):
        states.append((args[0] if args else kwargs["hidden_states"])[0].clone())

    def leaving(_, args, output):
        states.append(first(output)[0].clone())

    registered = [block.register_forward_pre_hook(entering, with_kwargs=True) for block in blocks]
    with hooks(*registered, blocks[-1].register_forward_hook(leaving)):
        logits = run(model, input_ids)
    return torch.stack(states), logits


def residuals(model, input_ids):
    """(h [L+1, T, d], a [L, T, d], m [L, T, d], logits [T, V]): the stream and what attention and MLP add to it."""
    blocks, attention, mlp, _ = places(model)
    attended, computed = [], []

    def keep(into):
        # clone: Falcon adds the attention's output in place into the tensor its MLP returned
        return lambda _, args, output: into.append(first(output).reshape(-1, first(output).shape[-1]).clone())

    registered = [block.get_submodule(attention).register_forward_hook(keep(attended)) for block in blocks]
    registered += [block.get_submodule(mlp).register_forward_hook(keep(computed)) for block in blocks]
    with hooks(*registered):
        h, logits = block_states(model, input_ids)
    a, m = torch.stack(attended), torch.stack(computed)
    if model.config.model_type == "granite":
        a, m = a * model.config.residual_multiplier, m * model.config.residual_multiplier
    return h, a, m, logits


def lens(model, h):
    """The logits the model would give if `h` [..., d] left its last block."""
    config = model.config
    norm = places(model)[3]
    x = h if norm is None else norm(h)  # the OPT whose blocks end in a norm has no other
    if config.model_type == "opt" and model.model.decoder.project_out is not None:
        x = model.model.decoder.project_out(x)
    logits = model.lm_head(x)
    if config.model_type == "cohere":
        logits = logits * config.logit_scale
    if config.model_type == "granite":
        logits = logits / config.logits_scaling
    if config.model_type in ("gemma2", "gemma3_text") and config.final_logit_softcapping is not None:
        logits = config.final_logit_softcapping * torch.tanh(logits / config.final_logit_softcapping)
    return logits


def in_float64(model):
    """A float64 copy of `model` whose norms compute in float64 too, which transformers' own would do in float32."""
    model = copy.deepcopy(model).double()
    model.set_experts_implementation("eager")  # the grouped matmul of mixtures of experts has no float64
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm") or kind == "CohereLayerNorm":
            module.forward = _norm_forward(module, kind)
    return model


def _norm_forward(module, kind):
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
    weight = 1 + module.weight if kind.startswith("Gemma") else module.weight

    def forward(x):
        if kind == "CohereLayerNorm":
            x = x - x.mean(-1, keepdim=True)
        return weight * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()

    return forward


def replacing(model, layer, h_l):
    """A hook that puts h_l [rows, T, d] in the place of residual l: what enters block 0 or leaves block `layer` − 1."""
    blocks = places(model)[0]
    if layer > 0:
        return blocks[layer - 1].register_forward_hook(lambda _, args, output: with_first(output, h_l))

    def entering(_, args, kwargs):
        return ((h_l, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": h_l})

    return blocks[0].register_forward_pre_hook(entering, with_kwargs=True)


def norm(x):
    return x.norm(dim=-1)
