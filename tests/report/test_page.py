"""The report is the executed notebook without its code: one file, and what a reader has to know stands first."""

import html
import re
from importlib import import_module
from importlib.metadata import version

import nbformat
import pytest

from depth_lib.effective_depth.tables import CONTROL
from depth_lib.figures import KINDS
from depth_lib.report.conclusions import conclusions, headline
from depth_lib.report.page import made_here, notices, write_page
from depth_lib.report.table import provenance, read_tables
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import ARTIFACTS
from depth_lib.results.study import Study
from tests.notebooks import executed_here, printed
from tests.synthetic import DATASETS, artifact_path, result_of, save


def save_quickly(figure, stem):
    """As `figures.grid.save`, without the layout and the PDF."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    figure.set_layout_engine("none")
    figure.savefig(path := stem.with_suffix(".png"), dpi=20)
    return [path]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")

    def saved(model, n_layers, probe, n=4, dataset="gsm8k", **meta):
        """Of the papers' keys only, so that few figures are drawn."""
        result, keys = result_of(probe, n_layers, n), ARTIFACTS[probe].required
        result = {key: value for key, value in result.items() if key.removesuffix("_sums") in (*keys, "n_tokens")}
        meta = {"model_id": f"nobody/{model}", "n_prompts": n} | meta
        save(out, model, probe, n_layers, dataset, n, result, **meta)
        return result

    for probe in ("relative_contribution", "layer_effects", "logit_lens"):
        saved("toy-8l", 8, probe)
    for probe in ("relative_contribution", "logit_lens"):
        saved("Qwen2.5-7B-Instruct", 28, probe, 6)
    saved("toy-8l", 8, "logit_lens", dataset="hellaswag")
    for model in ("<b>&model", "toy-4l"):
        flat = saved(model, 4, "logit_lens", 10, model_id=f"nobody/<i>{model}", dtype="bfloat16")
    of_random = artifact_path(out, "gsm8k", "toy-4l", "logit_lens", 10, changed="weights=random")
    save_artifact(of_random, flat | {"res_kl_divs": flat["res_kl_divs"] * 0.01}, {})
    return Study(out, datasets=DATASETS)


@pytest.fixture(scope="module")
def notebook(study):
    """The table's notebook, executed as `make table` does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("depth_lib.figures.grid"), "save", save_quickly)
        return executed_here("effective_depth", OUT=str(study.folder), DATASETS=list(DATASETS))


@pytest.fixture(scope="module")
def whole(notebook, study):
    nbformat.write(notebook, made := study.folder / "effective_depth.ipynb")
    return write_page(made).read_text()


@pytest.fixture(scope="module")
def page(whole):
    return re.sub("<script.*?</script>|<style.*?</style>", "", whole, flags=re.DOTALL)


def words_of(page):
    return html.unescape(" ".join(re.sub("<[^>]*>", " ", page).split()))


def test_the_page_is_one_file_that_needs_no_network_and_has_each_image_once_and_plotly_once(page, whole):
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    images = [link for link in links if link.startswith("data:image/png;base64,")]
    assert len(images) == len(set(images)) == len(links) == 7
    scripts = re.findall("<script.*?</script>", whole, flags=re.DOTALL)
    assert sum(len(script) > 10**6 for script in scripts) == 1 and not any(" src=" in one[:200] for one in scripts)
    assert sum("Plotly.newPlot" in script[:4000] for script in scripts if len(script) < 10**6) == 1
    assert len(page) < 2_000_000


def test_the_notebook_tells_what_is_missing_and_writes_every_table_and_figure(notebook, study):
    text = printed(notebook)
    assert "toy-4l              @ gsm8k     :" in text and "no artifact for aime24 × toy-4l" in text
    assert "depth-lib sweep --models toy-4l" in text and "torch.Size([4])" in text  # the authors' reading code
    made = {path.suffix for path in study.folder.glob("effective_depth.*")}
    assert made >= {".xlsx", ".csv", ".tex"} and len(list(study.folder.glob("figures/**/*.png"))) == 17


def test_it_has_no_code_and_nothing_that_only_the_notebook_tells(page):
    for words in ("import ", "depth_table(", "make table", "authors' own code", "read_tables", "no artifact"):
        assert words not in page, words
    assert 'class="highlight' not in page


def test_the_first_thing_is_the_answer_then_what_is_mixed_then_the_table(page, study):
    text, tables = words_of(page), read_tables(study)
    mixed = "Mixed numbers of prompts, so that rows are not alike: "
    order = ["Effective depth of 4 models", headline(tables.depths), mixed, "Mixed dtypes", "A layer, counted from 0"]
    order += ["The three curves of each model", "What the numbers say", "Heat maps", KINDS["layer_effects"].title]
    order += ["Depths by every rule", "What is measured", "Where the numbers come from"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert page.index("<img") < page.index("Mixed numbers")  # the card


def test_the_page_tells_depths_intervals_rules_and_where_they_come_from(page, study):
    text, tables = words_of(page), read_tables(study)
    row = tables.intervals.query("model == 'toy-8l' and metric == 'cosine'").iloc[0]
    for words in (
        f"{row.ed} ({row.ratio:.2f}) {row.low} {'' if row.low == row.high else f'to {row.high} '}",
        "the last l in 0..L-2 with c[l] < 0 and c[l+1] ≥ 0",
        "nobody/toy-8l",
        f"torch {version('torch')}",
        *conclusions(study, tables.depths, tables.beside_the_paper),
    ):
        assert words in text, words


def test_a_model_with_random_weights_has_a_row_with_the_reason_of_its_dashes(page):
    text = words_of(page)
    reason = "– no signal: largest KL 0.16 nats"
    assert f"toy-4l, {CONTROL} GSM8K {reason} {reason} –" in text and text.count(f", {CONTROL}") == 1


def test_names_that_are_markup_stay_text(page):
    assert "&lt;b&gt;&amp;model" in page and "<b>&model" not in page and "<i>" not in page


def test_settings_are_mixed_only_where_results_of_the_table_differ(tmp_path):
    usual = {"n_prompts": 10, "dtype": "float32"}
    for model in ("a", "b"):
        save(tmp_path, model, "logit_lens", **usual)
    save(tmp_path, "a", "layer_effects", **usual | {"n_prompts": 4})
    assert notices(Study(tmp_path)) == []
    save(tmp_path, "a", "logit_lens", dataset="aime24", **usual | {"n_prompts": 5})
    (line,) = notices(Study(tmp_path))
    assert line == "Mixed numbers of prompts, so that rows are not alike: 10 (gsm8k); 5 (aime24)."
    save(tmp_path, "b", "logit_lens", dtype="bfloat16", n_prompts=4)
    first, second = notices(Study(tmp_path))
    assert first.endswith("10 (a on gsm8k); 5 (a on aime24); 4 (b on gsm8k).")
    assert second == "Mixed dtypes, so that rows are not alike: float32 (a); bfloat16 (b)."


def test_prompts_of_the_packages_own_and_toys_are_named_first(tmp_path):
    def of(model, dataset, source):
        meta = {"model_id": model, "source": source, "n_prompts": 10, "seed": 123}
        save(tmp_path, model, "logit_lens", dataset=dataset, **meta)

    of("a-model", "gsm8k", "hub")
    of("b-model", "gsm8k", "sample")  # GSM8K's own first rows
    assert made_here(Study(tmp_path)) == ([], [])
    of("a-model", "hellaswag", "sample")
    of("toy-4l", "gsm8k", "embedded")
    study = Study(tmp_path)
    datasets, toys = made_here(study)
    assert sorted(datasets) == ["gsm8k (for some models)", "hellaswag"] and toys == ["toy-4l"]
    prompts, models = notices(study)
    assert prompts.startswith(f"Prompts of {', '.join(datasets)} were written for depth_lib")
    assert "show how the probes work: toy-4l." in models


def test_provenance_names_probes_that_were_made_otherwise(tmp_path):
    meta = {"model_id": "Qwen/X", "revision": "abc", "n_prompts": 10, "source": "hub"}
    for probe, dtype in (("logit_lens", "bfloat16"), ("relative_contribution", "float32")):
        save(tmp_path, "X", probe, dtype=dtype, **meta)
    runs = provenance(Study(tmp_path))
    assert len(runs) == 2 and set(runs.run) == {"X, gsm8k"}
    assert re.search(r"logit_lens: Qwen/X; abc; bfloat16; 10 prompts; hub; .*torch", " ".join(runs.made_from))


def test_provenance_names_the_gguf_file_of_a_package_and_no_prompts_where_none_are_read(tmp_path):
    meta = {"model_id": "SmolLM2-135M-Instruct", "dtype": "float32", "source": "sample", "where": "local cpu"}
    save(tmp_path, "X", "integrated_gradients", **meta)
    (line,) = provenance(Study(tmp_path)).made_from
    assert "SmolLM2-135M-Instruct; float32; sample; local cpu; " in line
