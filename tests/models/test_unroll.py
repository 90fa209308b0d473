"""A model that runs its blocks several times, beside a plain loop over them in float64."""

import copy
import json

import matplotlib.pyplot as plt
import pandas
import pytest
import torch
import transformers as tf
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import LlamaModel

import depth_lib as dl
from depth_lib.data.tokens import tokenize
from depth_lib.models.errors import ArchitectureError
from depth_lib.params import ParamsError
from depth_lib.results.study import Study
from depth_lib.sweep.cli import main
from tests import families, oracles
from tests.marks import others_slow
from tests.oracles import streams
from tests.oracles.orders import damage
from tests.probes.comparing import close
from tests.tiny_tokenizers import char_tokenizer

B, TEXTS = 2, ["The quick brown fox jumps over 13 lazy dogs", "5 + 7 + 5 + 3 ="]


class Layer(nn.Module):
    """A block with a norm behind it, if there is one, and the arguments that the model itself gives the block."""

    def __init__(self, block, norm, given):
        super().__init__()
        self.block, self.norm, self.given = copy.deepcopy(block), norm, given

    def forward(self, h):
        h = streams.first(self.block(h, *self.given["args"], **self.given["kwargs"]))
        return h if self.norm is None else self.norm(h)


class PlainLoop(nn.Module):
    """The loop by its definition, in float64: for each pass, for each block; then the final norm and the head."""

    def __init__(self, model, passes, between):
        super().__init__()
        self.model = oracles.in_float64(model)
        self.config, self.lm_head = copy.deepcopy(self.model.config), self.model.lm_head
        blocks, attention, mlp, self.norm = streams.places(self.model)
        self.given = [{} for _ in blocks]
        last = [between and l == len(blocks) - 1 and p < passes - 1 for p in range(passes) for l in range(len(blocks))]
        self.layers = nn.ModuleList(
            Layer(blocks[k % len(blocks)], self.norm if norm else None, self.given[k % len(blocks)])
            for k, norm in enumerate(last)
        )
        self.config.model_type = "plain loop"
        self.places = "layers", f"block.{attention}", f"block.{mlp}", "norm"

    def forward(self, input_ids, use_cache=False):
        entered, registered = [], []
        for block, given in zip(streams.places(self.model)[0], self.given, strict=True):

            def entering(_, args, kwargs, given=given):
                entered.append(args[0] if args else kwargs["hidden_states"])
                given |= {"args": args[1:], "kwargs": {k: v for k, v in kwargs.items() if k != "hidden_states"}}

            registered.append(block.register_forward_pre_hook(entering, with_kwargs=True))
        with streams.hooks(*registered):
            self.model(input_ids=input_ids, use_cache=use_cache)
        h = entered[0]
        for layer in self.layers:
            h = layer(h)
        return CausalLMOutputWithPast(logits=self.lm_head(self.norm(h)))


@pytest.fixture(params=others_slow(["llama", "gpt2", "gemma3_text"], ["llama"]))
def looped(request, monkeypatch):
    """(a tiny model, a function that gives the plain loop and the unrolled model as load_model returns it)."""
    model = families.build(request.param, n_blocks=B)

    def both(passes, between):
        plain = PlainLoop(model, passes, between)
        monkeypatch.setitem(streams.PLACES, "plain loop", plain.places)
        unrolled = dl.unroll(model, passes, norm_between=between)
        return plain, dl.load_model(unrolled, char_tokenizer())

    return model, both


@pytest.mark.filterwarnings("ignore:.*read block by block|.*Attention and MLP cannot be told apart")
@pytest.mark.parametrize("between", others_slow([False, True], [True]))
@pytest.mark.parametrize("passes", others_slow([2, 3, 4], [3]))
def test_curves_effects_and_removal_are_those_of_a_plain_loop_in_float64(looped, passes, between):
    model, both = looped
    plain, llm = both(passes, between)
    assert len(llm.blocks) == llm.config.num_hidden_layers == passes * B
    assert llm._module.num_parameters() == model.num_parameters()
    ids = tokenize(llm, TEXTS)
    with torch.no_grad():
        for row in ids:
            close(llm._module(torch.tensor([row])).logits[0], plain(torch.tensor([row])).logits[0], 1e-4)
    ours = dl.relative_contribution(llm, TEXTS) | dl.logit_lens(llm, TEXTS)
    truth = oracles.relative_contribution(plain, ids) | oracles.logit_lens(plain, ids)
    keys = ["rc_layer", "layer_cos", "norm_residual", "res_kl_divs", "res_overlaps", "res_jsd"]
    if not between:  # a norm that ends a block leaves nothing that attention and MLP add
        keys += ["rc_att", "rc_mlp", "att_cos", "mlp_cos"]
    else:
        truth |= layer_curves(plain, ids)
        assert ours["rc_att"].isnan().all()
    for key in keys:
        close(ours[key], truth[key], 1e-4)
    for mode in ("future", "all"):
        effects = dl.layer_effects(llm, TEXTS, mode)
        for key, value in oracles.layer_effects(plain, ids, mode).items():
            close(effects[key], value, 1e-3)
    removed = dl.block_removal(llm, TEXTS, sizes=[B])
    for s in range(passes * B - B + 1):
        without = copy.copy(plain)
        without._modules = plain._modules | {"layers": nn.ModuleList([*plain.layers[:s], *plain.layers[s + B :]])}
        close(removed["removal_loss"][0, s], damage(plain, without, ids)[0], 1e-3)


def layer_curves(plain, ids):
    """rc_layer and layer_cos where a layer adds whatever it changes."""
    rc, cos, n_tokens = 0, 0, 0
    with torch.no_grad():
        for row in ids:
            h, _ = streams.block_states(plain, row)
            added = h[1:] - h[:-1]
            rc = rc + (added.norm(dim=-1) / h[:-1].norm(dim=-1)).sum(-1)
            cos = cos + torch.cosine_similarity(added, h[:-1], dim=-1).sum(-1)
            n_tokens += len(row)
    return {"rc_layer": rc / n_tokens, "layer_cos": cos / n_tokens}


def test_an_order_of_virtual_layers_and_a_pass_removed_are_fewer_passes(looped):
    model, both = looped
    _, llm = both(3, False)
    _, fewer = both(2, False)
    without = dl.remove_blocks(llm, B, B)
    ids = torch.tensor(tokenize(llm, TEXTS[:1]))
    assert torch.equal(without._module(ids).logits, fewer._module(ids).logits)
    swapped = dl.reorder_blocks(llm, [1, 0, 3, 2, 5, 4])
    again = dl.block_orders(llm, TEXTS[:1], [[1, 0, 3, 2, 5, 4]])
    with torch.no_grad():
        log_y, log_x = (m._module(ids).logits[0, :-1].log_softmax(-1) for m in (llm, swapped))
    loss = (log_y - log_x).gather(-1, ids[0, 1:, None]).mean()
    close(again["order_loss"][0], loss, 1e-3)


class LoopedModel(LlamaModel):
    """As Ouro computes: all blocks, then the final norm, `total_ut_steps` times; an exit after each."""

    def __init__(self, config):
        super().__init__(config)
        self.total_ut_steps = getattr(config, "total_ut_steps", 4)

    def forward(self, input_ids, **options):
        h = self.embed_tokens(input_ids)
        places, self.exits = self.rotary_emb(h, torch.arange(h.shape[1])[None]), []
        for _ in range(self.total_ut_steps):
            for layer in self.layers:
                h = layer(h, position_embeddings=places)
            h = self.norm(h)
            self.exits.append(h.detach())
        return BaseModelOutputWithPast(last_hidden_state=h)


@pytest.fixture
def ouro(monkeypatch):
    monkeypatch.setattr("transformers.models.llama.modeling_llama.LlamaModel", LoopedModel)
    return families.drawn(tf.LlamaConfig(**families.SHAPE | {"num_hidden_layers": 3}, total_ut_steps=4))


@pytest.mark.filterwarnings("ignore:.*Attention and MLP cannot be told apart")
def test_a_model_with_a_loop_of_its_own_gives_its_own_logits_at_every_exit(ouro):
    ids = torch.tensor([char_tokenizer()(TEXTS[0])["input_ids"]])
    with torch.no_grad():
        ouro(ids)
        for n, h in enumerate([*ouro.model.exits], 1):
            assert torch.equal(dl.unroll(ouro, n)(ids).logits, ouro.lm_head(h))
        assert torch.equal(dl.unroll(ouro)(ids).logits, ouro(ids).logits)
    assert ouro.model.total_ut_steps == 4  # the model itself is left as it is
    with pytest.raises(ArchitectureError, match=r"looped, .* run 4 times; .*dl.unroll\(model, passes=4\), tokenizer"):
        dl.load_model(ouro, char_tokenizer())
    assert len(dl.load_model(dl.unroll(ouro), char_tokenizer()).blocks) == 12


def test_saving_is_refused_in_one_sentence_also_after_removal(looped, tmp_path):
    _, both = looped
    _, llm = both(2, False)
    for model in (llm, dl.remove_blocks(llm, 1)):
        with pytest.raises(
            dl.ModelError, match="^its passes share their weights, so a saved copy would compute something else"
        ):
            dl.save_model(model, tmp_path / "saved")
        with pytest.raises(dl.ModelError, match="its passes share"):
            model._module.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.slow
def test_each_result_knows_the_pass_of_each_layer_also_after_removal():
    toy = dl.load_model("toy-4l")
    llm = dl.load_model(dl.unroll(toy._module, 3), toy.tokenizer)
    results = [
        dl.relative_contribution(llm, TEXTS),
        dl.logit_lens(llm, TEXTS),
        dl.layer_effects(llm, TEXTS, "all"),
        dl.local_effects(llm, TEXTS, "all"),
        dl.block_removal(llm, TEXTS, sizes=[4]),
        dl.direct_effects(llm, "5 + 7 = ", "12"),
        dl.answer_lens(llm, "5 + 7 = ", "12"),
        dl.residual_erasure(llm, "5 + 7 = ", "12", TEXTS),
        dl.integrated_gradients(llm, "5 + 7 = ", "12", quadrature=0.5),
    ]
    for result in results:
        assert result["layer_passes"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
        lines = drawn_lines(result)
        assert lines and {*lines} == {3.5, 7.5}, result.probe
    assert "layer_passes" not in dl.logit_lens(toy, TEXTS) and not drawn_lines(dl.logit_lens(toy, TEXTS))
    shorter = dl.logit_lens(dl.remove_blocks(llm, 3, 5), TEXTS)
    assert shorter["layer_passes"].tolist() == [0] * 3 + [1] * 4 and {*drawn_lines(shorter)} == {2.5}


def test_a_reordered_loop_has_the_passes_of_its_new_order(toy):
    three = dl.load_model(dl.unroll(toy._module, 3), toy.tokenizer)
    of_five = dl.reorder_blocks(three, [0, 1, 2, 3] * 5)
    five = dl.load_model(dl.unroll(toy._module, 5), toy.tokenizer)
    reordered, unrolled = (dl.logit_lens(llm, TEXTS) for llm in (of_five, five))
    assert torch.equal(reordered["layer_passes"], unrolled["layer_passes"]) and "passes" in unrolled.depths()
    pandas.testing.assert_frame_equal(reordered.depths(), unrolled.depths())
    assert reordered["meta"]["passes"] == unrolled["meta"]["passes"] == 5
    mixed = dl.reorder_blocks(three, [1, 0, 2, 3, 8, 9, 4, 4])  # a pass in another order, two of a later, one twice
    assert dl.logit_lens(mixed, TEXTS)["layer_passes"].tolist() == [0, 0, 0, 0, 1, 1, 2, 3]


def drawn_lines(result):
    """The places of the dotted lines in the figures of a result."""
    places = []
    for kind in dl.kinds_of(result.probe, result):
        for line in result.plot(kind).get_lines():
            if line.get_linestyle() == ":":
                (x, y) = line.get_data()
                places += [x[0]] if x[0] == x[1] else [y[0]]
        plt.close("all")
    return places


def test_a_depth_is_told_in_layers_and_in_passes():
    toy = dl.load_model("toy-4l")
    depths = dl.logit_lens(dl.load_model(dl.unroll(toy._module, 3), toy.tokenizer), TEXTS).depths()
    known = depths[depths.ed.notna()]
    assert len(known) and (known.passes == (known.ed + 1) / 4).all()
    assert "passes" not in dl.logit_lens(toy, TEXTS).depths()


@pytest.mark.slow
def test_a_run_of_several_passes_lies_beside_that_of_one(tmp_path, capsys):
    asked = {"MODEL": "toy-4l", "N_EXAMPLES": 2, "OUT": str(tmp_path), "PROBES": ["logit_lens"], "PASSES": 3}
    run = dl.Run(asked)
    assert run.folder == tmp_path / "gsm8k/toy-4l-x3" and dl.Run(asked | {"PASSES": 1}).folder.name == "toy-4l"
    toy = dl.load_model("toy-4l")
    truth = dl.logit_lens(dl.load_model(dl.unroll(toy._module, 3), toy.tokenizer), run.prompts)
    result = run.result("logit_lens")
    assert torch.equal(result["res_kl_divs"], truth["res_kl_divs"]) and len(truth["res_kl_divs"]) == 12
    assert torch.equal(result["layer_passes"], truth["layer_passes"])
    record = json.loads((run.folder / "run.json").read_text())
    assert record["params"]["PASSES"] == 3 and result["meta"]["model"] == "toy-4l-x3"
    assert dl.Run(asked).is_done("logit_lens") and not dl.Run(asked | {"PASSES": 2}).is_done("logit_lens")
    assert main(["status", "--out", str(tmp_path)]) == 0
    assert "toy-4l-x3  done" in capsys.readouterr().out
    assert all(line.startswith("toy-4l-x3 @ gsm8k, ") for line in run.depths())
    dl.Run(asked | {"PASSES": 1, "PART": "question"}).result("logit_lens")
    (of_loop,) = (line for line in Study(tmp_path).missing() if "for gsm8k-question × toy-4l-x3 " in line)
    assert "run: depth-lib sweep --models toy-4l --datasets gsm8k --passes 3 --part question --probes " in of_loop
    with pytest.raises(ParamsError, match="PASSES unrolls the model on this machine, but REMOTE runs on a server"):
        dl.Run(asked | {"REMOTE": True})


def test_a_shorter_model_of_several_passes_is_not_written_by_the_command(tmp_path):
    words = ["prune", "toy-4l", "--passes", "2", "--source", "embedded", "--save", str(tmp_path / "shorter")]
    with pytest.raises(SystemExit, match="^SAVE cannot write a model whose passes share their weights; [^.]*$"):
        main(words)
    assert not (tmp_path / "shorter").exists()


def test_generation_runs_without_a_cache_and_continues_as_the_logits_say(looped):
    _, both = looped
    plain, llm = both(2, False)
    ids = torch.tensor(tokenize(llm, TEXTS[:1]))
    made = llm._module.generate(ids, max_new_tokens=3, do_sample=False)
    for _ in range(3):
        ids = torch.cat([ids, plain(ids).logits[:, -1:].argmax(-1)], 1)
    assert made.tolist() == ids.tolist()


def test_what_cannot_be_unrolled_is_refused(ouro):
    model = families.build("gpt2")
    for passes in (None, 0, 2.0, True):
        with pytest.raises(ValueError, match="passes must be an integer"):
            dl.unroll(model, passes)
    with pytest.raises(dl.ModelError, match="pass llm._module"):
        dl.unroll(dl.load_model("toy-4l"), 2)
    with pytest.raises(ValueError, match="unrolled already"):
        dl.unroll(dl.unroll(model, 2), 2)
    ouro.config.loops = ouro.config.__dict__.pop("total_ut_steps")  # a loop of a kind that nobody knows
    with pytest.raises(ArchitectureError, match="one stack of blocks"):
        dl.unroll(ouro, 2)
