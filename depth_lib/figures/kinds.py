"""The kinds of figure, a row each: what is read from which probe's result, by which mark, and the words around it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.font_manager import FontProperties, findfont, get_font

from ..data.orders import orders as orders_of
from ..effective_depth.deep_thinking import deep_thinking_ratio, mean_with_interval, of_responses
from ..effective_depth.difficulty import EFFECTS, by_level, depth_scores, importance
from ..effective_depth.rules import as_array
from ..params import not_among
from ..results.schemas import SCHEMAS as ARTIFACTS

Values = dict[str, np.ndarray]  # label -> a curve [L], or a map [rows, columns]

BLOCK, INPUT, OUTPUT = "Block $l$", "Input of block $l$", "Output of block $l$"
CHANGE = (0, math.sqrt(2))  # the largest distance between two distributions


@dataclass(frozen=True)
class Kind:
    """A figure: `read` takes label -> values from a result; a label per curve of a panel, or per map.

    read: a function, or key -> label.
    mark: curves over layers (a single one as bars); scores with intervals; the worth of blocks in loss and accuracy;
    words over layers; or heat maps. Their row 0 is at the bottom, or at the top as in the papers' maps of effects on
    later layers.
    limits: of the vertical axis or the colours.
    rule: the effective depth that is marked. colours: the label of the maps' colour bar.
    optional: what `read` reads beyond the probe's required keys.
    """

    probe: str
    read: Mapping[str, str] | Callable[[Mapping], Values]
    title: str
    caption: str
    ylabel: str
    xlabel: str = BLOCK
    mark: Literal["curves", "scores", "worth", "words", "map", "map of later layers", "signed map", "answer map"] = (
        "curves"
    )
    limits: tuple[float | None, float | None] = (None, None)
    rule: str = ""
    log: bool = False
    colours: str = ""
    optional: str = ""

    def values(self, result: Mapping) -> Values:
        """The values of a result to draw; empty if it has none, or is from a different probe."""
        if getattr(result, "probe", self.probe) != self.probe:
            return {}
        if callable(self.read):
            return self.read(result) if result.keys() & ARTIFACTS[self.probe].required.keys() else {}
        return {label: as_array(result[key]) for key, label in self.read.items() if key in result}

    def by_prompt(self, result: Mapping) -> list[np.ndarray]:
        """The curves of each prompt [P, L] of each key that has them."""
        keys = [] if callable(self.read) else [key for key in self.read if key in result]
        sums = [as_array(result[f"{key}_sums"]) for key in keys if f"{key}_sums" in result]
        of_prompts = [as_array(result[f"{key}_by_prompt"]) for key in keys if f"{key}_by_prompt" in result]
        return [of_key / as_array(result["n_tokens"])[:, None] for of_key in sums] + [
            of_key.reshape(len(of_key), -1) for of_key in of_prompts
        ]

    @property
    def needs(self) -> str:
        """The keys that the figure reads, in words."""
        if self.optional:
            return self.optional
        keys = ARTIFACTS[self.probe].required if callable(self.read) else self.read
        return (" and " if callable(self.read) else " or ").join(f'"{key}"' for key in keys)

    @property
    def of_question(self) -> bool:
        """Whether the figure is about a question and its answer, not a data set."""
        return ARTIFACTS[self.probe].of_pair


def token_label(token: str) -> str:
    """A token in at most eight characters; a blank is "␣", and a character that the font does not have is "□"."""
    font = get_font(findfont(FontProperties()))
    label = token.replace("Ċ", "↵").replace("\n", "↵").strip("Ġ▁ ") or "␣"
    label = "".join(letter if font.get_char_index(ord(letter)) else "□" for letter in label)
    return label if len(label) < 9 else label[:7] + "…"


def _maps_by_level(result: Mapping) -> Values:
    groups = by_level(result, as_array(result["layer_effect"]))
    return {
        f"level {level} (n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{len(effects)})": effects.mean(0)
        for level, effects in groups.items()
    }


def _importance_by_level(effect: str) -> Callable[[Mapping], Values]:
    def read(result):
        means = {level: one.mean(0) for level, one in by_level(result, importance(result, effect)).items()}
        return {f"level {level}": mean / (mean.sum() or 1) for level, mean in means.items()}

    return read


def _scores(result: Mapping) -> Values:
    """Level, score and the ends of its interval, a column each."""
    rows = depth_scores(result)
    return {
        EFFECTS[str(effect)]: own[["level", "score", "low", "high"]].to_numpy()
        for effect, own in rows.groupby("effect")
    }


def _removals(result: Mapping) -> Values:
    sizes = as_array(result["removal_sizes"]).astype(int)
    return {f"n = {n}": losses for n, losses in zip(sizes, as_array(result["removal_loss"]), strict=True)}


def _ranks(result: Mapping) -> Values:
    tokens = zip(result["tokens"], as_array(result["answer_ranks"]).T, strict=True)
    return {f"{k}: {token_label(token)}".replace("$", r"\$"): ranks for k, (token, ranks) in enumerate(tokens, 1)}


def _response(result: Mapping) -> Values:
    """The divergences of the first response, where the lens kept them."""
    return {"": as_array(result["jsd"][0]).astype(float).T} if "jsd" in result else {}


def _worth(result: Mapping) -> Values:
    """The cost of each removed block: in loss [K], and in accuracy with both ends of the interval [3, K]; {} for own
    orders."""
    if "orders" in result.get("meta", {}).get("settings", {}):
        return {}
    fall = -np.stack([as_array(result[key]) for key in ("change", "change_high", "change_low")])
    return {"loss (nats per token)": as_array(result["choice_loss"]), "accuracy (share of questions)": fall}


def _late_tokens(result: Mapping) -> Values:
    """Correct or not, ratio and the ends of its interval, of each response and of the mean of each kind."""
    if not {"settling", "correct"} <= result.keys() or not of_responses(result):
        return {}
    frame = deep_thinking_ratio(result, correct=result["correct"])
    groups = frame.groupby("correct").ratio
    means = [(correct, *mean_with_interval(ratios)) for correct, ratios in groups]
    single = [(*of_response, math.nan, math.nan) for of_response in zip(frame.correct, frame.ratio, strict=True)]
    return {"one response": np.array(single), "mean, 95% interval": np.array(means)}


def _said(result: Mapping) -> Values:
    return {"": as_array(result["answer_kl"])} if "top_tokens" in result else {}


def _orders(kind: str, sizes: Mapping[int, str]) -> Callable[[Mapping], Values]:
    """The loss of each stretch of these sizes, by its first block."""

    def read(result):
        n_layers = int(as_array(result["n_layers"])[0])
        rows = as_array(result["orders"]).astype(int)
        losses = {tuple(row[row >= 0]): loss for row, loss in zip(rows, as_array(result["order_loss"]), strict=True)}
        tried = {label: orders_of(kind, n_layers, [n]) for n, label in sizes.items() if n < n_layers}
        curves = {label: [losses.get(tuple(order)) for order in orders] for label, orders in tried.items()}
        return {label: np.array(curve, float) for label, curve in curves.items() if None not in curve}

    return read


_GRADIENTS = (
    "How much {} at each token contributes to the summed probabilities of the answer's tokens. The colour scale "
    "ends at the 98th percentile of all tokens but the first."
)
_SKIPS = (
    "Largest relative change in what a later block (column) adds when a block's {} (row) is skipped. Future tokens: it "
    "is skipped before a random position, and the change is measured from there on. All tokens: it is skipped at "
    "every token but the first. Values above 1 share the last colour."
)


def _effects(part: str, of: str) -> dict[str, Kind]:
    """The figures of a skipped layer, attention or MLP."""
    probe, prefix = f"{part}_effects", "" if part == "layer" else f"{part}_"
    return {
        probe: Kind(
            probe,
            {"max_future_layer": "future tokens", "max_all_layer": "all tokens"},
            f"Effect of skipping {of} on later layers",
            _SKIPS.format("update" if part == "layer" else of.split("'s ")[-1]),
            "Block skipped",
            "Effect on block",
            "map of later layers",
            (0, 1),
            colours="Relative change",
        ),
        f"{prefix}output_change": Kind(
            probe,
            {"max_future_out": "future tokens", "max_all_out": "all tokens"},
            f"Effect of skipping {of} on the output",
            "Largest change in the probabilities of the next token (Euclidean norm).",
            "Output change norm",
            "Block skipped",
            limits=CHANGE,
        ),
        f"{prefix}skip_damage": Kind(
            probe,
            {"future_kl": "future tokens", "all_kl": "all tokens"},
            f"Damage done by skipping {of}",
            "KL divergence between the output and the output with the block skipped, mean over tokens, then prompts.",
            "KL(y || skipped), nats",
            "Block skipped",
            log=True,
        ),
    }


KINDS: dict[str, Kind] = {
    "cosine": Kind(
        "relative_contribution",
        {
            "att_cos": r"attention: $\mathrm{cossim}(a, h)$",
            "mlp_cos": r"MLP: $\mathrm{cossim}(m, h + a)$",
            "layer_cos": r"block: $\mathrm{cossim}(a + m, h)$",
        },
        "Cosine similarity of contributions and residual stream",
        "Updates with a positive cosine strengthen what is there; those with a negative one erase it. The effective "
        "depth is the last layer at which the mean of the three is negative while the next layer's mean is not. The "
        "thick part of the curve is the depth's interval.",
        "Cosine similarity",
        rule="cosine",
    ),
    "relative_contribution": Kind(
        "relative_contribution",
        {
            "rc_att": "attention: $||a|| / ||h||$",
            "rc_mlp": "MLP: $||m|| / ||h + a||$",
            "rc_layer": "block: $||a + m|| / ||h||$",
        },
        "Relative contribution to the residual stream",
        "Norm of each update relative to what it is added to, mean over tokens.",
        "Mean relative contribution",
        log=True,
    ),
    "norms": Kind(
        "relative_contribution",
        {"norm_att": "attention: $||a||$", "norm_mlp": "MLP: $||m||$", "norm_residual": "residual stream: $||h||$"},
        "Norms of the residual stream and of contributions",
        "Mean over tokens. The residual stream is shown before each block and after the last.",
        "Mean norm",
        log=True,
    ),
    "io_cos": Kind(
        "relative_contribution",
        {"io_cos": ""},
        "Cosine similarity of a block's input and output",
        "1 minus this value is the block influence of ShortGPT (arXiv 2403.03853).",
        r"$\mathrm{cossim}(h_l, h_{l+1})$",
    ),
    "progress": Kind(
        "relative_contribution",
        {"progress": ""},
        "Progress of the residual stream towards its final state",
        "How far the residual stream has moved along the straight line from the embeddings (0) to the final state (1), "
        "mean over tokens.",
        "Progress",
        INPUT,
    ),
    "angular": Kind(
        "relative_contribution",
        {"angular": ""},
        "Angular distance between residual streams",
        "Mean angle between the residual streams before two blocks, divided by π (arXiv 2403.17887).",
        "From: input of block",
        "To: input of block",
        "map",
        (0, 0.5),
        colours=r"Angular distance / $\pi$",
    ),
    **_effects("layer", "a layer"),
    **_effects("attention", "a layer's attention"),
    **_effects("mlp", "a layer's MLP"),
    "local_effects": Kind(
        "local_effects",
        {"max_future_local": "future tokens", "max_all_local": "all tokens"},
        "Direct effect of a layer on later ones",
        "Like the effect of skipping, but the block's contribution (row) is removed from the input of only one later "
        "block (column).",
        "Block taken out",
        "Effect on block",
        "map of later layers",
        (0, 1),
        colours="Relative change",
    ),
    "lens_kl": Kind(
        "logit_lens",
        {"res_kl_divs": ""},
        "KL divergence between the logit lens and the output",
        "The effective depth is the first layer below half of the maximum.",
        "KL divergence (nats)",
        INPUT,
        rule="kl",
    ),
    "lens_overlap": Kind(
        "logit_lens",
        {"res_overlaps": ""},
        "Overlap of the logit lens's top five tokens with the output's",
        "The effective depth is the first layer above 0.3.",
        "Overlap",
        INPUT,
        limits=(0, 1),
        rule="overlap",
    ),
    "lens_settled": Kind(
        "logit_lens",
        {"res_jsd": "divergence from the output (bits)", "res_settled": "share of tokens settled"},
        "Where predictions settle",
        "A token is settled once the Jensen-Shannon divergence between lens and output has been half a bit or less.",
        "Divergence, share",
        INPUT,
        limits=(0, 1),
    ),
    "response": Kind(
        "logit_lens",
        _response,
        "Where the tokens of a response settle",
        "Jensen-Shannon divergence (bits) of each layer's prediction from the output, in the first response. A dot is "
        "where a token settles.",
        INPUT,
        "Token of the response",
        "answer map",
        (0, 1),
        colours="Divergence (bits)",
        optional='"jsd" and "tokens", from per_token=True',
    ),
    "late_tokens": Kind(
        "logit_lens",
        _late_tokens,
        "Late tokens of right and wrong responses",
        "Share of a response's tokens that settle in the last 15% of the layers: the deep-thinking ratio (Chen et al. "
        "2026). Hollow: no interval, or one that reaches 0.",
        "Deep-thinking ratio",
        "Response: 0 wrong, 1 right",
        "scores",
        optional='responses and "correct", 1 or 0 for each: dl.logit_lens(…, generate=64) | {"correct": [1, 0, …]}',
    ),
    "direct_effects": Kind(
        "direct_effects",
        {"direct_att": "attention", "direct_mlp": "MLP"},
        "Direct effect on the answer",
        "Fall in each answer token's log-probability (nats) without what this part adds to the final residual stream.",
        BLOCK,
        "Token of the answer",
        "answer map",
    ),
    "block_accuracy": Kind(
        "block_accuracy",
        _worth,
        "What each block is worth",
        "Rise in the loss on the right endings, and fall in accuracy with its paired 95% confidence interval, when "
        "the block is removed. Circled blocks matter by only one of the two measures.",
        "Cost",
        "Removed block",
        "worth",
        optional="removals of each block in turn: leave out orders=",
    ),
    "answer_ranks": Kind(
        "answer_lens",
        _ranks,
        "Rank of each token of the answer, layer by layer",
        "Rank 1 is the layer's most likely token. The last point is the model's output.",
        "Rank",
        INPUT,
        log=True,
    ),
    "lens_table": Kind(
        "answer_lens",
        _said,
        "What each layer would say",
        "Most likely next token at the input of each block, before each token of the answer (nostalgebraist 2020). If "
        "there are more than 16 inputs, only every k-th and the last are shown. Colour: KL divergence from the output "
        "(nats).",
        "Token of the answer",
        INPUT,
        "words",
    ),
    "residual_erasure": Kind(
        "residual_erasure",
        {"erasure_effect": ""},
        "Residual erasure",
        "Change in the answer's probabilities (norm) when one token's residual stream is replaced by the average.",
        INPUT,
        "Token",
        "map",
        CHANGE,
        colours="Change in probabilities (norm)",
    ),
    "future_erasure": Kind(
        "future_erasure",
        {"future_erasure": "this token", "past_erasure": "all tokens before it"},
        "Effect of erasure on all later predictions",
        "Largest change in any later prediction (norm) when this token, or all before it but the first, is replaced by "
        "the average.",
        INPUT,
        "Token",
        "map",
        CHANGE,
        colours="Change in probabilities (norm)",
    ),
    **{
        name: Kind(
            name, {"igrads": ""}, f"Integrated gradients of {of}", _GRADIENTS.format(of), where, "Token", "signed map"
        )
        for name, of, where in (
            ("integrated_gradients", "the residual stream", OUTPUT),
            ("attention_gradients", "what attention adds", "Attention of block $l$"),
            ("mlp_gradients", "what the MLP adds", "MLP of block $l$"),
        )
    },
    "block_removal": Kind(
        "block_removal",
        _removals,
        "Cost of removing consecutive blocks",
        "Rise in the loss (nats per token) when n blocks are removed, starting with this block.",
        "Loss increase (nats)",
        "First removed block",
    ),
    **{
        f"{part}_removal": Kind(
            f"{part}_removal",
            {"removal_loss": ""},
            f"Cost of removing the {part.replace('mlp', 'MLP')} of several blocks",
            "Rise in the loss (nats per token) when the parts up to this place in the order are removed. The "
            "cheapest are removed first (LLM-Drop).",
            "Loss increase (nats)",
            "Place in the order of removal, from 0",
        )
        for part in ("attention", "mlp")
    },
    "repeats": Kind(
        "block_orders",
        _orders("repeats", {n: f"n = {n}" for n in range(1, 9)}),
        "Cost of running consecutive blocks twice",
        "Rise in the loss (nats per token) when n blocks run twice in a row; below 0, the loss falls.",
        "Loss increase (nats)",
        "First repeated block",
        optional='repeats of every stretch of n blocks: dl.orders("repeats", n_layers)',
    ),
    "swaps": Kind(
        "block_orders",
        _orders("reversals", {2: ""}),
        "Cost of swapping neighbouring blocks",
        "Rise in the loss (nats per token) when this block and the next are swapped.",
        "Loss increase (nats)",
        "First block",
        optional='swaps of all neighbouring blocks: dl.orders("swaps", n_layers)',
    ),
    "effects_by_level": Kind(
        "depth_by_difficulty",
        _maps_by_level,
        "Effect of skipping a layer, by difficulty",
        "Relative change, from the answer on, in what a later block adds; mean over examples.",
        "Block skipped",
        "Effect on block",
        "map of later layers",
        (0, 1),
        colours="Relative change",
    ),
    **{
        f"importance_{effect}": Kind(
            "depth_by_difficulty",
            _importance_by_level(effect),
            f"Which layers matter {where}, by difficulty",
            "Effect of skipping a layer before the answer, as a share of all layers' effects.",
            "Share of the effect",
            "Block skipped",
        )
        for effect, where in (("layer", "to later layers"), ("output", "to the output"))
    },
    "depth_score_by_level": Kind(
        "depth_by_difficulty",
        _scores,
        "Depth score by difficulty",
        "Mean layer, weighted by the effect of skipping it before the answer, with its 95% confidence interval over "
        "questions. "
        "Hollow: the interval reaches the first or the last layer, or there are fewer than 3 questions.",
        "Layer",
        "Level of difficulty",
        "scores",
    ),
    "linear_maps": Kind(
        "linear_map",
        {"relative": ""},
        "Linear maps from each layer of one model to each layer of another",
        "Relative error on held-out tokens; layer 0 is the embeddings.",
        "Layer of the source",
        "Layer of the target",
        "map",
        (0, 1),
        colours="Relative error",
        optional='"relative": dl.linear_maps(source, target, texts)',
    ),
}


def find_kind(name: str) -> Kind:
    """The kind of this name; ValueError for another one."""
    if problem := not_among(KINDS, "figure", name):
        raise ValueError(problem)
    return KINDS[name]


def kinds_of(probe: str, result: Mapping) -> list[str]:
    """The names of the figures that can be drawn from a result.

    >>> dl.kinds_of("logit_lens", {"res_kl_divs": [8.0, 5.0, 3.0, 1.0]})
    ['lens_kl']

    - probe: the probe's name
    - result: the probe's result

    Cost: no forward pass.
    """
    if problem := not_among(ARTIFACTS, "probe", probe):
        raise ValueError(problem)
    return [name for name, kind in KINDS.items() if kind.probe == probe and kind.values(result)]
