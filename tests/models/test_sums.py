"""A part that a block lacks, that several modules make, that the block rescales, or to which it adds a bias."""

import pytest
import torch

import depth_lib as dl
from depth_lib.data.tokens import answer_span
from depth_lib.models.families import describe, known
from depth_lib.models.load import wrapped
from depth_lib.probes.integrated_gradients import integrated_gradients
from depth_lib.session import run
from tests.models import kinds
from tests.probes.comparing import TOLERANCE
from tests.tiny_tokenizers import char_tokenizer


@pytest.mark.parametrize("at", ["attention", "mlp"])
def test_what_a_block_with_one_mixer_lacks_is_zero(at):
    """nemotron_h: its blocks hold either a token mixer or a channel mixer."""
    llm = wrapped(kinds.tiny("nemotron_h"), char_tokenizer())
    lacking = [l for l, parts in enumerate(known(llm).found.parts) if not parts[at]]
    assert 0 < len(lacking) < 4
    assert (dl.relative_contribution(llm, ["abc"])[f"norm_{at[:3]}"][lacking] == 0).all()
    effects = dl.layer_effects(llm, ["The quick brown fox"], "all", part=at)
    assert all(effects[key][lacking].max() <= TOLERANCE for key in ("max_all_layer", "max_all_out"))
    gradients = dl.integrated_gradients(llm, "5 + 7 = ", "12", quadrature=1.0, at=at)
    assert (gradients["igrads"][lacking] == 0).all()


def test_a_block_without_attention_shares_no_pass_with_the_next():
    """Both paths enter the next block: one before it, one in it."""
    llm = dl.load_model("toy-4l")
    arch = describe(llm)
    arch.parts = [*arch.parts]
    arch.parts[1] = {"attention": [], "mlp": [["self_attn", 1.0, None], ["mlp", 1.0, None]]}
    ids, places, _ = answer_span(llm, "5 + 7 = ", "12")

    def gradients(layers):
        work = (arch, ids, places, layers, "attention", 4, 0.01, 1000)
        return run(integrated_gradients, llm, *work)["igrads"]

    together, alone = gradients([1, 2]), gradients([2])
    assert (together[0] == 0).all() and (alone != 0).any()
    torch.testing.assert_close(together[1:], alone)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["gemma4_text", pytest.param("beam", marks=pytest.mark.slow), "gpt_neox_japanese"])
def test_a_part_that_the_block_rescales_or_that_has_a_bias_is_set_as_a_whole(kind):
    """gemma4 and beam multiply h + a + m by a number; in gpt_neox_japanese's last block a bias is added to attention's
    output."""
    llm = wrapped(kinds.tiny(kind), char_tokenizer())
    model, parts = llm._module, known(llm).found.parts
    assert known(llm).found.rescales != any(bias for block in parts for part in block.values() for _, _, bias in part)
    (ids,) = llm.tokenizer(["5 + 7 = 12"])["input_ids"]
    clean = kinds.logits_of(model, ids).softmax(-1)
    added = kinds.contributions(model, ids, parts)

    def probabilities(k, l, values):
        """The model's, where the part k of block l adds these values: the first of its modules makes them alone."""

        def write(path, scale, bias, x):
            x = x if bias is None else x - blocks[l].get_parameter(bias)

            def replace(_, args, output):
                y = kinds.first(output)
                return kinds.with_first(output, (x / scale).to(y).view(y.shape))

            return blocks[l].get_submodule(path).register_forward_hook(replace)

        blocks, alone = kinds.blocks_of(model), [values, *[torch.zeros_like(values)] * 2]
        hooks = [write(*addend, x) for addend, x in zip([*parts[l].values()][k], alone, strict=False)]
        return kinds.logits_of(model, ids, hooks).softmax(-1)

    for k, part in enumerate(("attention", "mlp")):
        effects = dl.layer_effects(llm, ["5 + 7 = 12"], "all", part=part)["max_all_out"][:, 0]
        with torch.enable_grad():
            gradients = dl.integrated_gradients(llm, "5 + 7 = ", "12", quadrature=1.0, at=part)
        for l in range(4):
            skipped = added[k, l].clone()
            skipped[1:] = 0
            truth = (probabilities(k, l, skipped) - clean).norm(dim=-1).max()
            assert float(effects[l]) == pytest.approx(float(truth), rel=1e-4, abs=1e-6)
            mean = probabilities(k, l, added[k, l].mean(0, keepdim=True).expand_as(added[k, l]))
            truth = sum(float((clean - mean)[place - 1, ids[place]]) for place in (-2, -1))
            assert float(gradients["f_difference"][l]) == pytest.approx(truth, rel=1e-4, abs=1e-6)
