"""Figures of what the probes' passes tell besides the papers' curves; rows of `KINDS` like those of kinds.py."""

from . import panels
from .difficulty import KEYS, SHARE, importance_lines, score_bars
from .kind import LAYER, Kind
from .skip_kinds import DIRECT_EFFECTS, PART_SKIPS

NORMS = {"labels": ("Attention: $||a||$", "MLP: $||m||$", "Residual stream: $||h||$"), "log": True}
TOKENS = {"ylabel": LAYER, "xlabel": "Token", "of_question": True, "size": (2.0, 2.4)}
GRADIENTS = TOKENS | {"colorbar": "Attribution (to 98th percentile)", "own_scale": True}
GRADIENTS |= {"options": {"limits": panels.symmetric, "cmap": "seismic"}}


def _gradients(part: str) -> dict[str, Kind]:
    return {
        f"{part.lower()}_gradients": Kind(
            f"{part.lower()}_gradients",
            f"Integrated gradients of what {part} adds",
            f"Attribution of the answer's probability to what each layer's {part} adds at each token. Colours end at "
            "the 98th percentile of the tokens after the first.",
            ("igrads",),
            panels.token_map,
            **GRADIENTS,
        )
    }


def _erased(key: str, title: str, what: str) -> Kind:
    caption = f"Largest change, in norm, of any later prediction when {what} is replaced by an uninformative one."
    caption += (
        " That is the mean over the baseline prompts, in a sweep GSM8K's, as many as the run has; of a model with "
    )
    caption += "runs on several datasets, the first that the study names is shown."
    return Kind(
        "future_erasure", title, caption, (key,), panels.token_map, colorbar="Probability difference norm", **TOKENS
    )


FURTHER_KINDS = {
    **PART_SKIPS,
    **_gradients("attention"),
    **_gradients("MLP"),
    **DIRECT_EFFECTS,
    "future_erasure": _erased(
        "future_erasure", "Erasure and all that follows", "the residual stream of one token at one layer"
    ),
    "past_erasure": _erased(
        "past_erasure",
        "Erasure of the past and all that follows",
        "the residual stream at one layer of all tokens before this one, but the first,",
    ),
    "max_norms": Kind(
        "relative_contribution",
        "Largest norms of the residual stream and of contributions",
        "Largest norm over tokens and prompts of what enters a block (filled) and of what its attention and MLP add.",
        ("max_norm_att", "max_norm_mlp", "max_norm_residual"),
        panels.parts,
        "Largest norm",
        options=NORMS,
    ),
    "max_contribution": Kind(
        "relative_contribution",
        "Largest relative contribution to the residual stream",
        "Largest norm, over tokens and prompts, of what attention and MLP add over the norm of what they read.",
        ("max_rc_att", "max_rc_mlp"),
        panels.lines,
        "Largest relative contribution",
        options={"labels": ("Attention: $||a|| / ||h||$", "MLP: $||m|| / ||h + a||$"), "log": True},
    ),
    "first_change": Kind(
        "relative_contribution",
        "Turn of the residual stream at each token of the first prompt",
        "1 less the cosine of what enters and what leaves a block, at each token of the first prompt. Colours end "
        "at the 98th percentile of the tokens after the first.",
        ("first_change",),
        panels.token_map,
        options={"limits": panels.from_zero},
        colorbar="$1 - \\mathrm{cossim}(h_l, h_{l+1})$",
        own_scale=True,
        **TOKENS | {"of_question": False},
    ),
    "angular": Kind(
        "relative_contribution",
        "Angular distance between residual streams",
        "arccos of the cosine of the residual streams before two blocks over pi, mean over tokens (Gromov et al. "
        "2024): blocks in a dark square turn it little, and are the first to leave out.",
        ("angular",),
        panels.layer_map,
        "From layer",
        "To layer",
        options={"vmax": 0.5},
        colorbar="Angular distance / $\\pi$",
        size=(1.9, 1.9),
    ),
    "progress": Kind(
        "relative_contribution",
        "Progress of the residual stream towards its end",
        "Share of the way from embeddings to final residual that is gone before each block, mean over tokens; marked "
        "is the first block before which half of it is.",
        ("progress",),
        panels.bars,
        "Progress",
        options={"metric": "progress"},
    ),
    "lens_first_k": Kind(
        "logit_lens",
        "Where the output's first token stands in the logit lens",
        "Share of tokens whose likeliest output token is among the first 1, 3, 5 and 10 of the logit lens, and the "
        "mean reciprocal rank it has there.",
        ("res_top1", "res_in_top3", "res_in_top5", "res_in_top10", "res_mrr"),
        panels.lines,
        "Share, reciprocal rank",
        options={"labels": ("first", "first 3", "first 5", "first 10", "mean reciprocal rank")},
        shows=("lens_rank",),
    ),
    "lens_entropy": Kind(
        "logit_lens",
        "Entropy of the logit lens",
        "Entropy of what the model would predict from the input of each layer, nats, mean over tokens.",
        ("res_entropy",),
        panels.bars,
        "Entropy (nats)",
    ),
    "lens_settled": Kind(
        "logit_lens",
        "How the logit lens settles",
        "Jensen-Shannon divergence of the logit lens from the output, bits, and the share of tokens for which it "
        "has been at most 1/2 at some layer up to this one; written above, the share that settles after 85% of the "
        "layers, which is behind the last one where there are fewer than seven.",
        ("res_jsd", "res_settled"),
        panels.settling,
        "Divergence (bits), share",
        options={"labels": ("divergence", "settled tokens")},
    ),
    **{
        f"importance_by_level_{effect}": Kind(
            "depth_by_difficulty",
            f"Importance of layers by difficulty, {what}",
            f"Effect of skipping a layer before the answer {what}, mean over the examples of a level, as a share of "
            "the sum over all layers; a line a level of difficulty, from easy (dark) to hard (bright).",
            KEYS,
            importance_lines,
            SHARE,
            "Layer skipped",
            options={"effect": effect},
        )
        for effect, what in (("layer", "on later layers"), ("output", "on the output"))
    },
    "depth_score_by_level": Kind(
        "depth_by_difficulty",
        "Depth score by difficulty",
        "Centre of mass over layers of the effect of skipping each before the answer, with 95 % intervals over "
        "examples: bars that rise are harder questions that use more depth.",
        KEYS,
        score_bars,
        "Layer",
        "Level of difficulty",
    ),
}
