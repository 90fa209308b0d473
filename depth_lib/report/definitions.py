"""Definitions in the report: what each name is, its rule, and the curve that the rule reads."""

import pandas as pd

SOURCES = (
    "Rules and thresholds: Hu, Zhou, Zhang 2025, What Affects the Effective Depth of Large Language Models? "
    "(arXiv 2512.14064), Table 1.",
    "Curves: Csordás, Manning, Potts 2025, Do Language Models Use Their Depth Efficiently? (arXiv 2505.13898).",
)

_DEFINITIONS = {
    "cosine": (
        "The last layer where the mean cosine changes from negative to non-negative. It may do so several times.",
        "c = mean of att_cos, mlp_cos and layer_cos; the last l in 0..L-2 with c[l] < 0 and c[l+1] ≥ 0.",
        "relative_contribution.pt: cosine similarity of the updates by attention, MLP and block with the residual "
        "stream they update, mean over all tokens of all prompts.",
    ),
    "kl": (
        "The first layer where the KL divergence of the logit lens is below half of its maximum.",
        "The first l in 0..L-2 with KL[l] < 0.5 · max(KL).",
        "logitlens_{n}exps.pt: KL(lens ‖ output) at the input of block l, in nats, mean over tokens.",
    ),
    "overlap": (
        "The first layer where lens and output share more than 0.3 of their five likeliest tokens.",
        "The first l in 0..L-2 with res_overlaps[l] > 0.3.",
        "logitlens_{n}exps.pt: share of the output's five likeliest tokens among the lens's five, at the input of "
        "block l, mean over tokens.",
    ),
    "skips_future": (
        "How deep the blocks lie that the output needs, on tokens after the skipped ones. Our own score.",
        "No layer but a centre of mass: Σ s · kl[s] / Σ kl[s], kl the mean damage of skipping block s.",
        "layer_effects_{n}exps.pt: KL(output ‖ output with block s skipped), in nats, mean over tokens, then prompts.",
    ),
    "skips_all": (
        "How deep the blocks lie that the output needs, on all tokens. Our own score.",
        "No layer but a centre of mass: Σ s · kl[s] / Σ kl[s], kl the mean damage of skipping block s.",
        "layer_effects_{n}exps.pt: KL(output ‖ output with block s skipped), in nats, mean over tokens, then prompts.",
    ),
    "erasure": (
        "The last layer at which the answer still needs a token of the question. The first token and the one before "
        "the answer are not counted. Our own rule.",
        "The last l in 0..L-1 at which erasing one moves the answer by over half of the largest effect.",
        "logit_erasure_{n}exps.pt: norm of the change of the probabilities when a token's residual stream at the input "
        "of block l is replaced by an average one.",
    ),
    "progress": (
        "The layer that is half of the way from the embeddings to the final residual stream. Our own rule.",
        "The first l in 0..L-1 with progress[l] ≥ 1/2.",
        "relative_contribution.pt: ⟨h_l − h_0, h_L − h_0⟩ / ‖h_L − h_0‖², h_l the input of block l, mean over tokens.",
    ),
    "removal": (
        "How much of its depth the model needs: n consecutive blocks cost at most 0.05 nats per token. Our own rule.",
        "L − 1 − n, n the largest tried number of blocks whose cheapest start has removal_loss ≤ 0.05.",
        "block_removal_{n}exps.pt: rise of the next token's loss, mean over tokens, then prompts.",
    ),
    "settling": (
        "The layer by which half of the tokens have settled on what the model predicts. Our own rule.",
        "The first l in 0..L-1 with res_settled[l] ≥ 1/2.",
        "logitlens_{n}exps.pt: share of tokens whose lens has come within half a bit (Jensen-Shannon) of the output.",
    ),
    "deep-thinking ratio": (
        "The share of tokens whose prediction settles only in the last 15 % of the layers.",
        "1 − res_settled[⌈0.85 L⌉ − 1]: a token settles when the lens has come within half a bit of the output.",
        "logitlens_{n}exps.pt, res_settled. arXiv 2602.13517, there over generated tokens: logit_lens(…, generate=n).",
    ),
    "ED": (
        "Effective depth: the layer l, counted from 0, that a rule finds.",
        "A dash: no layer satisfies the rule, or there is no result.",
        "The rules above.",
    ),
    "RATIO": (
        "The effective depth as a share of the model's depth.",
        "(ED + 1) / L, rounded to two decimals. The darker, the deeper.",
        "L is the number of blocks.",
    ),
    "score": (
        "Depth score: the centre of mass of an effect over layers, in layers. Brackets: a 95 % interval over prompts.",
        "Σ l · e[l] / Σ e[l], e[l] the effect of layer l.",
        "Csordás et al. 2025, section 4.",
    ),
    "papers": (*SOURCES, ""),
}

DEFINITIONS = pd.DataFrame(_DEFINITIONS, index=["What it is", "Rule", "Read from"]).T
