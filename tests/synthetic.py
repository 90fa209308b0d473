"""Made-up probe results with the shapes of real curves, for tests of what reads them."""

from pathlib import Path

import torch

from depth_lib.data.orders import orders as orders_of
from depth_lib.effective_depth.tables import published_depths
from depth_lib.params import FIVE_PROBES
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import ARTIFACTS

PAPER_MODELS = published_depths().set_index("model").layers.to_dict()
DATASETS = ("hellaswag", "gsm8k", "aime24")
TOKENS = ["<|begin_of_text|>", *"5 + 7 + 5 + 3 + 1 + 7 = ", "2", "8"]


def curves_with_depths(n_layers: int, cosine: int | None, kl: int | None, overlap: int | None) -> dict:
    """A relative_contribution and a logit_lens result whose effective depths are the given ones."""
    layers = torch.arange(n_layers)
    cos = torch.full((n_layers,), 0.05)
    cos[: cosine + 1 if cosine is not None else 0] = -0.05
    divergence = torch.where(layers < (n_layers if kl is None else kl), 10.0, 1.0)
    shared = torch.where(layers < (n_layers if overlap is None else overlap), 0.1, 0.6)
    contribution = {key: cos.clone() for key in ("att_cos", "mlp_cos", "layer_cos")}
    contribution |= {key: torch.full((n_layers,), 0.2) for key in ("rc_att", "rc_mlp", "rc_layer")}
    return {"relative_contribution": contribution, "logit_lens": {"res_kl_divs": divergence, "res_overlaps": shared}}


def result_of(probe: str, n_layers: int, n_prompts: int = 10, seed: int = 0, tokens: list[str] | None = None) -> dict:
    """One probe's result with every key, per-prompt sums included."""
    draw, tokens = torch.Generator().manual_seed(seed), tokens or TOKENS
    if probe in FIVE_PROBES:
        return globals()[f"_{probe}"](n_layers, n_prompts, tokens, draw)
    sizes = {
        "L": n_layers,
        "T": len(tokens),
        "P": n_prompts,
        "F": n_prompts - 1,
        "E": 9,
        "K": 3,
        "N": 3,
        "J": 3,
        "1": 1,
        "5": 5,
    }
    beside_each_key = {"effects": {"_by_prompt", "_rounding_floor"}, "erasure": {"_rounding_floor"}}
    absent = {"layer_passes", "_sums", "_by_prompt", "_rounding_floor"} - beside_each_key.get(
        probe.rpartition("_")[2], set()
    )
    result = {}
    for key, shape in ARTIFACTS[probe].shapes.items():
        if not key.endswith(tuple(absent)):
            shape = [sizes[axis[0]] + axis.endswith("+1") for axis in shape.split()]
            result[key] = torch.rand(shape, generator=draw)
    if probe == "block_removal":
        result["removal_sizes"] = torch.arange(1.0, 4)
    if probe == "block_orders":
        orders = [order for kind in ("repeats", "swaps", "removals") for order in orders_of(kind, n_layers)]
        longest = max(map(len, orders))
        result["orders"] = torch.tensor([[*order, *[-1.0] * (longest - len(order))] for order in orders])
        result["n_layers"] = torch.tensor([n_layers])
        measures = [key for key in result if key.startswith("order_")]
        result |= {key: torch.rand(*result[key].shape[:-1], len(orders), generator=draw) - 0.1 for key in measures}
    if probe == "answer_lens":
        result["top_tokens"] = [[[token] * 5 for token in tokens] for _ in range(n_layers + 1)]
    if ARTIFACTS[probe].by_level:
        result |= {"levels": torch.arange(2.0, 5), "level": torch.arange(2.0, 5).repeat(3)}
        result |= {f"{key}_rounding_floor": torch.full((9,), 0.01) for key in ("layer_effect", "output_effect")}
    return result | ({"tokens": list(tokens)} if ARTIFACTS[probe].tokens_file else {})


def artifact_path(out, dataset: str, model: str, probe: str, n: int, **how: str) -> Path:
    """Where a study has a probe's result."""
    return Path(out) / dataset / model / ARTIFACTS[probe].name(n, **how)


def write_run(
    out: Path,
    dataset: str,
    model: str,
    n_layers: int,
    probes=FIVE_PROBES,
    n_examples: int = 10,
    seed: int = 0,
    papers_keys_only: bool = False,
) -> None:
    """Write one model × data set; `papers_keys_only` as the papers' scripts would have: no meta, no per-prompt sums."""
    for i, probe in enumerate(probes):
        result = result_of(probe, n_layers, n_examples, seed + i)
        path = artifact_path(out, dataset, model, probe, n_examples)
        if papers_keys_only:
            write_as_the_papers(path, probe, result)
        else:
            save_artifact(path, result, {"model_id": f"nobody/{model}", "dataset": dataset, "n_examples": n_examples})


def save(out, model: str, probe: str, /, n_layers=8, dataset="gsm8k", n=10, result: dict | None = None, **meta) -> Path:
    """Save a made-up result, or the one given, where a study has it."""
    return save_artifact(artifact_path(out, dataset, model, probe, n), result or result_of(probe, n_layers), meta)


def write_as_the_papers(path: Path, probe: str, result: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = ARTIFACTS[probe]
    torch.save({key: result[key] for key in schema.required}, path)
    if schema.tokens_file:
        name = schema.tokens_file.format(n=path.stem.split("_")[-1].removesuffix("exps"))
        path.with_name(f"{name}.txt").write_text("".join(f"{token}\n" for token in result["tokens"]))


def _per_prompt(means: dict, n_prompts: int, draw: torch.Generator) -> dict:
    """Per-prompt sums over tokens whose pooled mean is near `means`, and the pooled means themselves."""
    n_tokens = torch.randint(40, 200, (n_prompts,), generator=draw).float()
    sums = {}
    for key, mean in means.items():
        noise = torch.randn(n_prompts, len(mean), generator=draw) * 0.1 * mean.abs().mean()
        sums[f"{key}_sums"] = (mean + noise) * n_tokens[:, None]
    pooled = {key: sums[f"{key}_sums"].sum(0) / n_tokens.sum() for key in means}
    return pooled | sums | {"n_tokens": n_tokens}


def _relative_contribution(n_layers, n_prompts, tokens, draw) -> dict:
    depth = torch.linspace(0, 1, n_layers)
    wave = 0.06 * (depth - 0.25) * (depth - 0.62) * 4 - 0.005
    means = {
        f"{key}_cos": wave * scale + 0.004 * torch.randn(n_layers, generator=draw)
        for key, scale in (("att", 0.7), ("mlp", 1.2), ("layer", 1.0))
    }
    size = 0.15 + 0.9 * (-12 * depth).exp()
    means |= {
        f"rc_{key}": size * scale * (1 + 0.2 * torch.rand(n_layers, generator=draw))
        for key, scale in (("att", 0.6), ("mlp", 0.9), ("layer", 1.2))
    }
    means |= {
        "io_cos": 1 - 0.3 * (-8 * depth).exp() - 0.02,
        "norm_att": 5 + 20 * depth,
        "norm_mlp": 8 + 40 * depth,
        "norm_residual": torch.linspace(10, 300, n_layers + 1),
    }
    further = {f"max_{key}": 3 * means[key] for key in ("norm_att", "norm_mlp", "norm_residual", "rc_att", "rc_mlp")}
    apart = torch.linspace(0, 1, n_layers + 1)
    further |= {"angular": 0.5 * (apart - apart[:, None]).abs(), "progress": apart**2}
    further["first_change"] = 0.1 * torch.rand(n_layers, 30, generator=draw)
    return _per_prompt(means, n_prompts, draw) | further


def _layer_effects(n_layers, n_prompts, tokens, draw) -> dict:
    skipped, affected = torch.meshgrid(torch.arange(n_layers), torch.arange(n_layers), indexing="ij")
    early = torch.sigmoid((0.5 * n_layers - skipped) / (0.08 * n_layers))
    result = {}
    for mode in ("future", "all"):
        effect = early * torch.sigmoid((affected - 0.3 * n_layers) / (0.1 * n_layers)) + 0.15
        effect = effect * (0.7 + 0.6 * torch.rand(n_prompts, n_layers, n_layers, generator=draw))
        out = (early[:, :1] + 0.1) * (0.5 + torch.rand(n_prompts, n_layers, 1, generator=draw))
        effect = effect.triu(1)
        if mode == "all":
            effect = effect + torch.eye(n_layers)
        result |= {
            f"max_{mode}_layer_by_prompt": effect,
            f"max_{mode}_layer": effect.amax(0),
            f"max_{mode}_out_by_prompt": out,
            f"max_{mode}_out": out.amax(0),
            f"{mode}_kl": out.mean(0).flatten(),
            f"{mode}_kl_by_prompt": out[..., 0],
        }
    return result


def _logit_lens(n_layers, n_prompts, tokens, draw) -> dict:
    depth = torch.linspace(0, 1, n_layers)
    rise = torch.sigmoid((depth - 0.88) / 0.05)
    means = {
        "res_kl_divs": 0.3 + 15 * torch.sigmoid((0.8 - depth) / 0.06) * (1 - 0.1 * depth),
        "res_overlaps": 0.8 * rise,
        "res_top1": 0.9 * rise,
        "res_mrr": 0.02 + 0.9 * rise,
        **{f"res_in_top{k}": 0.9 * rise + 0.01 * k for k in (3, 5, 10)},
        "res_entropy": 8 - 6 * rise,
        "res_jsd": 1 - 0.9 * rise,
        "res_settled": rise,
    }
    result = _per_prompt(means, n_prompts, draw)
    return result | {"res_overlaps": result["res_overlaps"].clamp(0, 1), "res_kl_divs": result["res_kl_divs"].clamp(0)}


def _residual_erasure(n_layers, n_prompts, tokens, draw) -> dict:
    layer, token = torch.meshgrid(torch.arange(n_layers + 1), torch.arange(len(tokens)), indexing="ij")
    stair = n_layers * (0.2 + 0.6 * token / len(tokens))
    effect = 1.2 * torch.sigmoid((stair - layer) / 1.5) * (0.4 + 0.6 * torch.rand(len(tokens), generator=draw))
    effect[:, -2] = 1.0
    effect[:, -1] = 0.0
    return {"erasure_effect": effect, "tokens": list(tokens)}


def _integrated_gradients(n_layers, n_prompts, tokens, draw) -> dict:
    fade = torch.linspace(1, 0.05, n_layers)[:, None]
    igrads = 0.3 * fade * torch.randn(n_layers, len(tokens), generator=draw)
    igrads[:, 0] *= 6
    igrads[:, -2] = 0.4
    igrads[:, -1] = 0.0
    return {"igrads": igrads, "completeness": 1e-4 * torch.randn(n_layers, generator=draw), "tokens": list(tokens)}
