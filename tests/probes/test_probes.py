"""Every probe against its oracle: on eight families at the lengths where an off-by-one would hide, on the others once.

Contributions, lens and effects of every kind of model are in tests/models/test_kinds.py.
"""

import pytest
import torch

import depth_lib as dl
from depth_lib.api import tokenize
from depth_lib.models.families import describe
from depth_lib.probes.integrated_gradients import integrated_gradients as probe_integrated_gradients
from depth_lib.probes.layer_effects import layer_effects as probe_layer_effects
from depth_lib.probes.local_effects import local_effects as probe_local_effects
from depth_lib.probes.residual_erasure import future_erasure as probe_future_erasure
from depth_lib.probes.residual_erasure import residual_erasure as probe_residual_erasure
from depth_lib.session import run
from tests import oracles as oracle
from tests.families import ARCHETYPES, FAMILIES, of_families
from tests.probes.comparing import ANSWER, QUESTION, SIXTY, TOLERANCE, close, compare_in_batch, load

TEXTS = {1: "", 2: "8", 13: "abcdefghijkl", 60: SIXTY}
LEFT_ENDS = ("block", 16, None)
CURVES = {"top1_agreement": "res_top1", "reciprocal_rank": "res_mrr"}  # the oracle's names


@pytest.fixture(scope="module", params=of_families(ARCHETYPES))
def pair(request, tmp_path_factory):
    return load(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return load("llama", tmp_path_factory.mktemp("llama"))


def ids(llm, texts):
    return [torch.tensor(x) for x in tokenize(llm, texts)]


@pytest.mark.parametrize("n_tokens", TEXTS)
def test_contributions_and_lens_equal_the_oracle(pair, n_tokens):
    llm, model = pair
    text = [TEXTS[n_tokens]]
    assert [len(x) for x in ids(llm, text)] == [n_tokens]
    ours = dl.relative_contribution(llm, text)
    for key, curve in oracle.relative_contribution(model, ids(llm, text)).items():
        close(ours[key], curve, scale=0.1 if key == "first_change" else 1e-9)  # 1 less numbers near 1
    ours = dl.logit_lens(llm, text)
    for key, curve in oracle.logit_lens(model, ids(llm, text)).items():
        close(ours[CURVES.get(key, key)], curve)


@pytest.mark.filterwarnings("ignore:too short")
@pytest.mark.parametrize("part", ["layer", "attention", "mlp"])
@pytest.mark.parametrize("mode", ["future", "all", "remove"])
def test_layer_effects_equal_the_oracle(pair, mode, part):
    llm, model = pair
    lengths = TEXTS.values() if part == "layer" else [TEXTS[13]]
    for texts in [["8", TEXTS[13], SIXTY]] if mode == "future" else [[text] for text in lengths]:
        ours = dl.layer_effects(llm, texts, mode=mode, part=part)
        for key, matrix in oracle.layer_effects(model, ids(llm, texts), mode, part=part).items():
            # float32 rounds a distance of distributions, which is a difference of numbers near 1, and the logits of two
            # batches, whose difference a loss is even where nothing changes: by 4 units of a logit of 8 at most
            scales = {"layer": 1e-9, "loss": 0.2}
            close(ours[key], matrix, TOLERANCE, scales.get(key.rpartition("_")[2], 0.1))


@pytest.mark.filterwarnings("ignore:too short")
@pytest.mark.parametrize("mode", ["future", "all"])
def test_local_effects_equal_the_oracle(pair, mode):
    llm, model = pair
    texts = ["8", TEXTS[13], "" if mode == "all" else TEXTS[13][::-1]]
    truth = oracle.local_effects(model, ids(llm, texts), mode)[f"max_{mode}_local"]
    assert truth.triu(1).count_nonzero() == truth.numel() // 2 - len(truth) // 2
    close(dl.local_effects(llm, texts, mode=mode)[f"max_{mode}_local"], truth)


PAIRS = {2: ("", "8"), 15: (QUESTION, ANSWER)}  # question and answer, by their number of tokens with <bos>


@pytest.mark.parametrize("n_tokens", PAIRS)
def test_residual_erasure_equals_the_oracle(pair, n_tokens):
    llm, model = pair
    ours = dl.residual_erasure(llm, *PAIRS[n_tokens], [TEXTS[13], SIXTY])
    x, span = oracle.answer_span(llm.tokenizer, *PAIRS[n_tokens])
    assert len(x) == n_tokens
    truth = oracle.residual_erasure(model, torch.tensor(x), span, ids(llm, [TEXTS[13], SIXTY]))
    close(ours["erasure_effect"], truth["erasure_effect"])


@pytest.mark.parametrize("n_tokens", PAIRS)
def test_erasure_and_the_future_equal_the_oracle(pair, n_tokens):
    llm, model = pair
    ours = dl.future_erasure(llm, *PAIRS[n_tokens], [TEXTS[13], SIXTY])
    x = torch.tensor(llm.tokenizer("".join(PAIRS[n_tokens]))["input_ids"])
    for key, truth in oracle.future_erasure(model, x, ids(llm, [TEXTS[13], SIXTY])).items():
        close(ours[key], truth, scale=0.1)


ATTRIBUTED = [(15, at, method) for at in ("block", "attention", "mlp") for method in ("gradients", "increments")]


@pytest.mark.parametrize("n_tokens, at, method", [(2, "block", "gradients"), *ATTRIBUTED])
def test_attributions_equal_the_oracle_at_the_same_points_with_and_without_batches_that_grow(
    pair, n_tokens, at, method
):
    llm, model = pair
    x, span = oracle.answer_span(llm.tokenizer, *PAIRS[n_tokens])
    layers, steps = [0, 2, 3], 16 if method == "gradients" else 2
    if method == "gradients":
        truth = oracle.integrated_gradients(model, x, span, "riemann", steps, layers, at)
    else:
        truth = oracle.increments(model, x, span, steps, layers, at)
    for arch in (describe(llm), describe(llm).but(can_add_rows=False)):
        work = (arch, x, list(range(*span)), layers, at, steps, None, None)
        ours = run(probe_integrated_gradients, llm, *work, method=method)
        close(ours["igrads"], truth["igrads"][layers])
        # a difference of nearly equal numbers, F among them
        close(ours["completeness"], truth["completeness"][layers], 5e-5, scale=truth["igrads"].abs().max())


def test_the_plain_path_equals_the_fast_one(pair, monkeypatch):
    """No batch that grows, an unmodified row in each: what a family runs on where it must."""
    llm, _ = pair
    fast, plain = describe(llm), describe(llm).but(can_add_rows=False)
    x, span = oracle.answer_span(llm.tokenizer, QUESTION, ANSWER)
    text = tokenize(llm, [SIXTY])
    calls = [
        (probe_layer_effects, [(text[0], [8, 24, 40])], "future", "layer", None),
        (probe_layer_effects, [(text[0], [len(text[0])])], "all", "layer", None),
        (probe_layer_effects, [(text[0], [8, 24, 40])], "future", "attention", None),
        (probe_layer_effects, [(text[0], [len(text[0])])], "remove", "mlp", None),
        (probe_local_effects, [(text[0], [8, 24, 40])], "future", None),
        (probe_future_erasure, x, list(range(fast.n_layers)), text, None),
        (probe_residual_erasure, x, list(range(*span)), list(range(fast.n_layers)), text, None),
        (probe_integrated_gradients, x, list(range(*span)), [0, 2], *LEFT_ENDS, None),
    ]
    for probe, *args in calls:
        one = run(probe, llm, fast, *args)
        others = [(plain, False)] if plain != fast else []
        if probe is not probe_integrated_gradients:  # which has no clean row
            others.append((fast, True))  # as in half precision
        for arch, in_batch in others:
            with monkeypatch.context() as patch:
                compare_in_batch(patch, in_batch)
                other = run(probe, llm, arch, *args)
            for key in one:
                of_outputs = key.endswith(
                    ("out", "kl", "loss", "top1", "completeness", "future_erasure", "past_erasure")
                )
                close(one[key], other[key], scale=0.1 if of_outputs else 1e-9)


@pytest.mark.filterwarnings("ignore:too short")
@pytest.mark.parametrize("name", of_families(name for name in FAMILIES if name not in ARCHETYPES))
def test_every_other_family_equals_the_oracle(name, tmp_path):
    pair = load(name, tmp_path)
    test_contributions_and_lens_equal_the_oracle(pair, 13)
    test_layer_effects_equal_the_oracle(pair, "all", "attention")
    test_layer_effects_equal_the_oracle(pair, "remove", "mlp")
    test_layer_effects_equal_the_oracle(pair, "future", "layer")
    test_local_effects_equal_the_oracle(pair, "all")
    test_residual_erasure_equals_the_oracle(pair, 15)
    test_erasure_and_the_future_equal_the_oracle(pair, 15)
    for at, method in (("block", "gradients"), ("attention", "gradients"), ("mlp", "increments")):
        test_attributions_equal_the_oracle_at_the_same_points_with_and_without_batches_that_grow(pair, 15, at, method)


@pytest.mark.parametrize("name", ["llama", pytest.param("gemma2", marks=pytest.mark.slow)])
def test_integrated_gradients_have_converged(name, tmp_path):
    llm, model = load(name, tmp_path)
    x, span = oracle.answer_span(llm.tokenizer, QUESTION, ANSWER)
    truth = oracle.integrated_gradients(model, x, span, nodes=64)
    ours = dl.integrated_gradients(llm, QUESTION, ANSWER, quadrature=1e-6)
    close(ours["igrads"], truth["igrads"], tolerance=5e-5)  # panels stop at float32's rounding of F
    rough = dl.integrated_gradients(llm, QUESTION, ANSWER)
    largest = truth["igrads"].abs().amax(1)
    assert ((rough["igrads"] - truth["igrads"]).abs().amax(1) <= (rough["error"] + 1e-5) * largest).all()
    assert (rough["error"] <= 0.01).all() and (rough["n_nodes"] <= ours["n_nodes"]).all()


def test_riemann_gradients_equal_256_left_end_steps(llama):
    llm, model = llama
    ours = dl.integrated_gradients(llm, QUESTION, ANSWER, quadrature="riemann")
    x, span = oracle.answer_span(llm.tokenizer, QUESTION, ANSWER)
    close(ours["igrads"][1], oracle.integrated_gradients(model, x, span, "riemann", 256, [1])["igrads"][1])


def test_erasing_sixty_tokens_in_several_passes_equals_the_oracle(llama):
    llm, model = llama
    question = SIXTY[:57]
    ours = dl.residual_erasure(llm, question, "28", [SIXTY])
    x, span = oracle.answer_span(llm.tokenizer, question, "28")
    truth = oracle.residual_erasure(model, torch.tensor(x), span, ids(llm, [SIXTY]))
    close(ours["erasure_effect"], truth["erasure_effect"])
