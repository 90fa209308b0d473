"""Toys whose blocks share weights: one group of blocks repeated, as in universal transformers and MoEUT.

Csordás et al. 2024 (arXiv 2405.16039): a group of two blocks with mixture-of-experts MLPs, run again and again. Trained
with the group as one module several times over, saved as an ordinary Qwen3-MoE checkpoint whose blocks hold equal
weights, so that every probe reads it as it is.
"""

from transformers import GenerationConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

BLOCKS, GROUP = 6, 2
END = 256  # the byte tokenizer's last token
SHAPE = {
    "vocab_size": END + 1,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": END,
}
GENERATION = GenerationConfig(eos_token_id=END, pad_token_id=END)


def new_toy(shared: bool) -> Qwen3MoeForCausalLM:
    """A randomly initialised toy of width 128 with `BLOCKS` blocks; `shared`: its blocks are `GROUP` modules in turn.

    Both kinds multiply as much for a token: a shared block's MLP has 8 experts of width 96, of which a token uses 4;
    an ordinary block's is plain, of width 384.
    """
    config = Qwen3MoeConfig(
        **SHAPE,
        num_hidden_layers=BLOCKS,
        head_dim=32,
        moe_intermediate_size=96,
        num_experts=8,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        mlp_only_layers=[] if shared else list(range(BLOCKS)),
    )
    model = Qwen3MoeForCausalLM(config)
    model.generation_config = GENERATION
    if shared:
        for l in range(GROUP, BLOCKS):
            model.model.layers[l] = model.model.layers[l % GROUP]
    return model


def unrolled(model: Qwen3MoeForCausalLM) -> Qwen3MoeForCausalLM:
    """The same model with weights of its own in every block: shared ones are copied."""
    copy = Qwen3MoeForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.generation_config = model.generation_config
    return copy.eval()
