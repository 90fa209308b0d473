"""Every kind of model that transformers reads as a language model: tiny, random, and run by plain PyTorch.

As a command it writes docs/architectures.csv: python -m tests.models.kinds
"""

import csv
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

import depth_lib as dl
from depth_lib.models.errors import ArchitectureError
from depth_lib.models.families import auto_class, known
from depth_lib.models.load import wrapped
from tests.models.twin import twin
from tests.oracles.streams import first, hooks, norm, with_first
from tests.tiny_tokenizers import char_tokenizer

PAGE = Path(__file__).parents[2] / "docs/architectures.csv"
KINDS = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
MULTIMODAL = sorted(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.keys() - MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys())
TEXT = "The quick brown fox"  # 20 tokens: one position of future mode
N_LAYERS = 4
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")

# What a default config lacks, or what keeps it from having 4 layers.
SETTINGS = {
    "cohere_compass_text": {
        "layer_types": ["full_attention"] * 4,
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}},
    },
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0}},
    "gemma3n_text": {
        "layer_types": ["full_attention"] * 4,
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": None,
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "falcon_h1": {"mamba_n_heads": 16, "mamba_d_head": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "zamba": {"num_hidden_layers": 12},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
}


LARGE = ("kosmos-2", "kosmos-2.5")  # their configs' defaults take gigabytes and half a minute before they are shrunk


class NotBuilt(Exception):
    """Why there is no tiny model of this kind."""


def tiny(kind):
    """A tiny random model of this kind, float64 where it computes in that.

    Raises NotBuilt with the reason, also for what is not a decoder.
    """
    if kind in LARGE:
        raise NotBuilt("its tiny model is not tiny")
    try:
        config = _config(kind)
        if config.is_encoder_decoder:
            raise NotBuilt("an encoder-decoder")
        if config.sub_configs:
            config = type(config).from_dict(shallow(config.to_dict()))
        model = twin(config, auto_class(config).from_config)
        ids = torch.randint(4, 100, (1, 9), generator=torch.Generator().manual_seed(0))
        logits = model(input_ids=ids, use_cache=False).logits
        ids[0, -1] = 3
        if logits.shape[1] != 9 or not torch.allclose(
            logits[0, :-1], model(input_ids=ids, use_cache=False).logits[0, :-1], atol=1e-3
        ):
            raise NotBuilt("tokens see later ones: an encoder")
    except NotBuilt:
        raise
    except Exception as error:
        raise NotBuilt(f"{type(error).__name__}: {' '.join(str(error).split())[:100]}") from error
    try:
        model.double()(input_ids=ids, use_cache=False)
    except RuntimeError:  # products of experts that know no float64
        model.float()
    return model


def _config(kind):
    for depth in DEPTHS:
        try:
            return CONFIG_MAPPING[kind](**({depth: N_LAYERS} | SETTINGS.get(kind, {})))
        except Exception as error:
            problem = error
    raise problem


def shallow(data):
    """The fields of a config, and of those in it, for no more than N_LAYERS blocks."""
    depth = next((name for name in DEPTHS if data.get(name)), None)
    if depth:
        old, data = data[depth], dict(data)
        for name, value in data.items():
            if isinstance(value, list) and len(value) == old:
                data[name] = value[:N_LAYERS]
            if name == "per_layer_config" and value:
                data[name] = {l: own for l, own in value.items() if int(l) < N_LAYERS}
        data[depth] = N_LAYERS
    return {n: shallow(v) if n.endswith("config") and isinstance(v, dict) else v for n, v in data.items()}


def blocks_of(model):
    """The blocks, by the names that they go by."""
    lists = [
        list(module)
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and path.split(".")[-1] in ("layers", "layer", "h", "blocks")
        if not re.search("vision|visual|image|video|audio", path)
    ]
    return max(lists, key=len)


def logits_of(model, ids, registered=()):
    with hooks(*registered):
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()


def stream(model, ids, registered=()):
    """(h [L + 1, T, d], logits [T, V])."""
    blocks, states = blocks_of(model), []

    def entering(_, args, kwargs):
        states.append(next(iter((*args, *kwargs.values())))[0].flatten(1).double())

    def leaving(_, args, output):
        states.append(first(output)[0].flatten(1).double())

    kept = [block.register_forward_pre_hook(entering, with_kwargs=True) for block in blocks]
    kept.append(blocks[-1].register_forward_hook(leaving))
    logits = logits_of(model, ids, [*registered, *kept])
    return torch.stack(states), logits


def lens(model, ids, h):
    """The logits if h [T, d] left the last block."""

    def replace(_, args, output):
        return with_first(output, h.to(first(output)).reshape(first(output).shape))

    return logits_of(model, ids, [blocks_of(model)[-1].register_forward_hook(replace)])


def skipping(model, ids, s, skipped):
    """`stream` where block s passes the tokens `skipped` on unchanged."""

    def replace(_, args, kwargs, output):
        x = first(output).clone()
        x[:, skipped] = next(iter((*args, *kwargs.values())))[:, skipped]
        return with_first(output, x)

    return stream(model, ids, [blocks_of(model)[s].register_forward_hook(replace, with_kwargs=True)])


def contributions(model, ids, parts):
    """a and m [L, T, d] by the modules that were found; 0 for one that a block does not have."""
    added = torch.zeros(2, len(parts), *stream(model, ids)[0].shape[1:]).double()

    def keep(l, k, scale, bias):
        def hook(_, args, output):
            added[k, l] += first(output).reshape(added[k, l].shape).double() * scale
            if bias:
                added[k, l] += blocks_of(model)[l].get_parameter(bias)

        return hook

    logits_of(model, ids, _hooked(model, parts, keep))
    return added


def _hooked(model, parts, hook):
    return [
        block.get_submodule(path).register_forward_hook(hook(l, k, scale, bias))
        for l, block in enumerate(blocks_of(model))
        for k, part in enumerate(parts[l].values())
        for path, scale, bias in part
    ]


def off(ours, truth):
    """The largest error, relative to the largest value; probes return float32."""
    return float((ours.double() - truth).abs().max() / truth.abs().max().clamp_min(1e-2))


@torch.no_grad()
def errors(llm):
    """How far contributions, lens and layer effects are from plain PyTorch; and the error of h + a + m."""
    model, (ids,) = llm._module, llm.tokenizer([TEXT])["input_ids"]
    h, logits = stream(model, ids)
    c, y = h[1:] - h[:-1], logits.softmax(-1)
    found = {}
    ours, arch, added = dl.relative_contribution(llm, [TEXT]), known(llm).found, c
    if arch.parts:
        a, m = contributions(model, ids, arch.parts)
        if arch.rescales:  # h_{l+1} = k (h_l + a + m), with one number k
            total = h[:-1] + a + m
            k = (h[1:] * total).sum((1, 2), keepdim=True) / total.square().sum((1, 2), keepdim=True)
            added = h[1:] / k - h[:-1]
        read = h[:-1] if arch.parallel else h[:-1] + a
        found["identity"] = float((a + m - added).norm() / h[1:].norm())
        found["rc_att"] = off(ours["rc_att"], (norm(a) / norm(h[:-1])).mean(1))
        found["rc_mlp"] = off(ours["rc_mlp"], (norm(m) / norm(read)).mean(1))
    found["layer"] = off(ours["rc_layer"], (norm(added) / norm(h[:-1])).mean(1))
    found["layer_cos"] = off(ours["layer_cos"], torch.cosine_similarity(added, h[:-1], dim=-1).mean(1))
    ours = dl.logit_lens(llm, [TEXT])
    log_p = torch.stack([lens(model, ids, x) for x in h[:-1]]).log_softmax(-1)
    kl = (log_p.exp() * (log_p - logits.log_softmax(-1))).sum(-1)
    found["lens"] = off(ours["res_kl_divs"], kl.mean(1))
    if not arch.can_skip_blocks:
        return found
    for mode, t, first_measured in (("future", 8, 8), ("all", len(ids), 0)):  # one position is drawn
        ours, truth, out = dl.layer_effects(llm, [TEXT], mode=mode), [], []
        for s in range(len(c)):
            h_bar, logits_bar = skipping(model, ids, s, slice(1, t))
            change = norm(h_bar[1:] - h_bar[:-1] - c) / norm(c).clamp_min(1e-6)
            truth.append(change[:, first_measured:].amax(1))
            out.append(norm(logits_bar.softmax(-1) - y)[first_measured:].max())
        found[mode] = off(ours[f"max_{mode}_layer"], torch.stack(truth))
        found[f"{mode}_out"] = off(ours[f"max_{mode}_out"][:, 0], torch.stack(out))
    return found


def state(kind):
    """(state, what was found, errors) of a kind: "all probes", "blocks only", "reading only" (nothing can be
    changed), "refused" or "not built"."""
    try:
        model = tiny(kind)
    except NotBuilt as reason:
        return "not built", str(reason), {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            llm = wrapped(model, char_tokenizer())
            found = errors(llm)
            changing = (
                lambda: dl.residual_erasure(llm, "5 + 7 = ", "12", ["abc"]),
                lambda: dl.integrated_gradients(llm, "5 + 7 = ", "12", quadrature=1.0),
            )
            if not known(llm).found.can_skip_blocks:
                dl.choice_accuracy(llm, [("5 + 7 = ", ["12", "13"], 0)])  # of the model as it is
                for change in (*changing, lambda: dl.layer_effects(llm, [TEXT]), lambda: dl.block_orders(llm, [TEXT])):
                    with pytest.raises(ValueError, match="read more of earlier blocks than the residual stream"):
                        change()
                return "reading only", known(llm).found, found
            for change in changing:
                change()
    except ArchitectureError as reason:
        return "refused", str(reason), {}
    except Exception as error:
        return "crashed", f"{type(error).__name__}: {' '.join(str(error).split())[:100]}", {}
    return "all probes" if known(llm).found.parts else "blocks only", known(llm).found, found


def in_words(found):
    """The modules that a and m of each block consist of."""
    after = ", all times one number" if found.rescales else ""
    return [f"a = {_sum(parts['attention'])}, m = {_sum(parts['mlp'])}{after}" for parts in found.parts or ()]


def _sum(part):
    terms = [f"{scale:.5g} {path}".removeprefix("1 ") + (f" + {bias}" if bias else "") for path, scale, bias in part]
    return " + ".join(terms) or "0 (one mixer only)"


def write_table():
    """docs/architectures.csv: a row per kind."""
    with PAGE.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["kind", "state", "read"])
        for kind in sorted([*KINDS, *MULTIMODAL]):
            outcome, found, off = state(kind)
            read = found
            if not isinstance(found, str):
                order = "parallel" if found.parallel else "sequential"
                names = sorted(set(in_words(found)))
                read = f"`{found.blocks}`: " + (f"{'; '.join(names)} ({order})" if names else found.missing)
                if not all(error <= 1e-5 for error in off.values()):  # NaN is wrong too
                    outcome += f", WRONG by {max(off.values()):.0e}"
            rows.writerow([kind, outcome, read])
            print(kind, outcome, read, file=sys.stderr)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    write_table()
