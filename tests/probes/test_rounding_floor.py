"""In half precision every probe that compares says what rounding alone may do, and is right to within that."""

import pytest
import torch

import depth_lib as dl
from depth_lib.data.examples import Example
from depth_lib.models.families import describe
from depth_lib.residual.rounding import rounding_floor
from depth_lib.residual.stream import Stream
from tests import oracles as oracle
from tests.families import build, of_families
from tests.marks import others_slow, slow
from tests.oracles.streams import in_float64
from tests.probes.comparing import ANSWER, QUESTION, SIXTY, ids_of, load, loaded

REAL = "SmolLM2-135M-Instruct"
TEXTS = [
    "The quick brown fox jumps over the lazy dog and runs away.",
    "Natalia sold 48 clips in April, and half as many in May. How many in all?",
]
TEXT = SIXTY[:44]


@pytest.fixture(
    scope="module", params=of_families(["llama", "gemma2", "bloom", "gpt_neox", "olmo2", "mixtral_dense", "granite"])
)
def pair(request):
    """A model in bfloat16, and in float64 with the same weights."""
    model = build(request.param, torch.bfloat16)
    return loaded(model), in_float64(model)


def within(result, key, truth):
    floor = result[f"{key}_rounding_floor"].max()
    assert ((result[key] - truth).abs() <= floor + 1e-6).all(), key
    assert floor < 20 * torch.finfo(torch.bfloat16).eps, "as large as anything"


@pytest.mark.parametrize("part", ["layer", "attention", "mlp"])
def test_effects_in_bfloat16_are_those_of_float64_within_the_rounding_floor(pair, part):
    llm, model = pair
    ids = ids_of(llm, [TEXT])
    for mode in ("future", "all"):
        truth = oracle.layer_effects(model, ids, mode, part=part)
        result = dl.layer_effects(llm, [TEXT], mode=mode, part=part)
        for key in (f"max_{mode}_layer", f"max_{mode}_out"):
            within(result, key, truth[key])


def test_local_effects_and_erasure_in_bfloat16_are_those_of_float64_within_the_rounding_floor(pair):
    llm, model = pair
    ids = ids_of(llm, [TEXT])
    key = "max_future_local"
    within(dl.local_effects(llm, [TEXT]), key, oracle.local_effects(model, ids, "future")[key])
    x, span = oracle.answer_span(llm.tokenizer, QUESTION, ANSWER)
    truth = oracle.residual_erasure(model, torch.tensor(x), span, ids)["erasure_effect"]
    within(dl.residual_erasure(llm, QUESTION, ANSWER, [TEXT]), "erasure_effect", truth)
    result = dl.future_erasure(llm, QUESTION, ANSWER, [TEXT])
    for key, truth in oracle.future_erasure(model, torch.tensor(x), ids).items():
        within(result, key, truth)


def test_float32_has_no_rounding_floor_beside_its_results_unless_products_are_in_tf32():
    llm, _ = load("llama")
    examples = [Example(1, "5 + 7 = ", "12")]
    for result in (dl.layer_effects(llm, [TEXT]), dl.local_effects(llm, [TEXT])):
        assert not [key for key in result if key.endswith("rounding_floor")]
    try:
        torch.set_float32_matmul_precision("high")  # TF32 on a GPU
        floors = {"max_future_layer_rounding_floor", "max_future_out_rounding_floor"}
        assert dl.layer_effects(llm, [TEXT]).keys() >= floors
    finally:
        torch.set_float32_matmul_precision("highest")
    half = loaded(build("llama", torch.bfloat16))
    extra = dl.depth_by_difficulty(half, examples).keys() - dl.depth_by_difficulty(llm, examples).keys()
    assert extra == {"layer_effect_rounding_floor", "output_effect_rounding_floor"}


@torch.no_grad()
@pytest.mark.parametrize("n_tokens, n_rows", [(13, 8), (60, 6), (200, 2), (13, 24)])
def test_the_floor_is_the_largest_change_if_every_feature_of_h_0_moves_by_a_rounding_unit(n_tokens, n_rows):
    """In up to eight rows, of 400 tokens together; and in eight pairs, if tokens of h_0 are erased as well."""
    model, found = build("llama", torch.bfloat16), {}
    llm = loaded(model)
    (ids,) = ids_of(llm, [(4 * SIXTY)[: n_tokens - 1]])
    erase = (lambda k, h: h[k : k + 2].zero_()) if n_rows == 24 else None
    with llm.trace({"input_ids": ids[None]}, use_cache=False):
        found.update(rounding_floor(Stream(llm, describe(llm), ids.tolist()), updates=True, change=erase))
    h = model.model.embed_tokens(ids)
    signs = torch.randint(0, 2, (n_rows, len(h[0])), generator=torch.Generator().manual_seed(0)) * 2 - 1
    rows = [h, *(h + h * (2.0**-7 * of_row).to(h) for of_row in signs)]
    for k, row in enumerate(rows[9:]):
        erase(k // 2, row)
    model.model.norm.register_forward_pre_hook(lambda _, args: found.update(last=args[0]))
    run = model.model(inputs_embeds=torch.stack(rows), output_hidden_states=True)
    y = model.lm_head(run.last_hidden_state).float().softmax(-1)
    distance = (y[1:] - y[0]).norm(dim=-1)
    in_pairs = 2 * (distance[8::2] - distance[9::2]).abs()
    assert float(found["outputs"]) == pytest.approx(float(torch.cat([distance[:8], in_pairs]).max()), rel=1e-3)
    c = torch.stack([*run.hidden_states[:-1], found["last"]]).float().diff(dim=0)
    moved = (c[:, 1:] - c[:, :1]).norm(dim=-1) / c[:, :1].norm(dim=-1)
    assert float(found["updates"]) == pytest.approx(float(moved.max()), rel=1e-3)


def in_tf32(x):
    """x with ten bits of its significand, as a GPU reads it in TF32."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("set_by", ["set_float32_matmul_precision", "backends"])
def test_effects_in_tf32_are_those_of_float64_within_the_rounding_floor(set_by, monkeypatch):
    """Every linear layer rounds as a GPU's; the settings say so, in torch's older words or in its newer ones."""
    llm, model = load("llama")
    ids = ids_of(llm, [TEXT])
    truth = oracle.layer_effects(model, ids, "future")
    linear = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, w, b=None: linear(in_tf32(x), in_tf32(w), b))
    places = (torch.backends, torch.backends.mkldnn.matmul, torch.backends.cuda.matmul)
    before = [place.fp32_precision for place in places]
    try:
        if set_by == "backends":
            for place in places[1:]:
                place.fp32_precision = "tf32"
        else:
            torch.set_float32_matmul_precision("high")
        found = dl.layer_effects(llm, [TEXT])
    finally:
        for place, setting in zip(places, before, strict=True):
            place.fp32_precision = setting
    for key in ("max_future_layer", "max_future_out"):
        error, floor = (found[key] - truth[key]).abs().max(), found[f"{key}_rounding_floor"].max()
        assert 1e-5 < error <= floor < 0.1, key


@pytest.fixture(scope="module", params=["toy-8l", slow(REAL)])
def both(request):
    """A trained model in bfloat16, in float32 with the same weights, and its texts: of the real one a single one."""
    half, whole = (dl.load_model(request.param, dtype=dtype) for dtype in ("bfloat16", "float32"))
    whole._module.load_state_dict({name: value.float() for name, value in half._module.state_dict().items()})
    return half, whole, TEXTS[1:] if request.param == REAL else TEXTS


TRAINED = {
    "effects, future": lambda llm, texts: dl.layer_effects(llm, texts),
    "effects, all": lambda llm, texts: dl.layer_effects(llm, texts, mode="all"),
    "effects of MLPs": lambda llm, texts: dl.layer_effects(llm, texts, part="mlp"),
    "local effects": lambda llm, texts: dl.local_effects(llm, texts),
    "erasure": lambda llm, texts: dl.residual_erasure(llm, "5 + 7 + 5 = ", "17", texts),
}


@pytest.mark.parametrize("name", others_slow(TRAINED, ["effects, future", "local effects", "erasure"]))
def test_at_most_a_twentieth_of_a_trained_models_cells_lie_beyond_the_rounding_floor(both, name):
    half, whole, texts = both
    found, truth = TRAINED[name](half, texts), TRAINED[name](whole, texts)
    for key in (key.removesuffix("_rounding_floor") for key in found if key.endswith("_rounding_floor")):
        measured = truth[key] > 0
        beyond = (found[key] - truth[key]).abs()[measured] > found[f"{key}_rounding_floor"].max()
        assert beyond.float().mean() <= 0.05, f"{key}: {beyond.float().mean():.3f}"
