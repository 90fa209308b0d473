"""The report is one file with every figure in its place, and what a reader has to know stands first."""

import html
import re
from importlib.metadata import version

import pytest
from PIL import Image

from depth_lib.figures import COMPARISONS, KINDS
from depth_lib.report.conclusions import conclusions
from depth_lib.report.page import made_here, write_report
from depth_lib.report.table import provenance, read_tables
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.synthetic import DATASETS, result_of, write_run


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    write_run(out, "gsm8k", "toy-8l", 8, n_examples=4)
    write_run(out, "gsm8k", "Qwen2.5-7B-Instruct", 28, ["relative_contribution", "logit_lens"], n_examples=4)
    write_run(out, "hellaswag", "toy-8l", 8, ["logit_lens"], n_examples=4)
    return Study(out, datasets=DATASETS)


@pytest.fixture(scope="module")
def tables(study):
    return read_tables(study)


@pytest.fixture(scope="module")
def page(study, tables, tmp_path_factory):
    """With a figure of each name, as `draw_figures` draws them, but empty and of its own size."""
    drawn = [tmp_path_factory.mktemp("figures") / f"{name}.png" for name in (*COMPARISONS, *KINDS)]
    for size, path in enumerate(drawn, start=1):
        Image.new("L", (size, 1)).save(path)
    text = write_report(study, tables, drawn).read_text()
    return re.sub("<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)


def words_of(page):
    return " ".join(re.sub("<[^>]*>", "", page.replace("<wbr>", "")).split())


def test_the_page_is_one_file_that_needs_nothing_else(page):
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    images = [link for link in links if link.startswith("data:image/png;base64,")]
    sections = [f"#{section}" for section in re.findall('<section id="([^"]*)"', page)]
    assert len(images) == len(set(images)) > 12
    assert [link for link in links if link not in images][: len(sections)] == sections
    assert {link for link in links if link not in images} == set(sections)
    assert 'alt=""' not in page


def test_every_figure_stands_where_its_name_belongs(page):
    places = {
        "depths": {"ratio_intervals"},
        "thresholds": {"thresholds"},
        "questions": {"ratio_by_size", "ratio_by_task"},
        "proxies": {"proxies"},
        "figures": {"cosine", "layer_effects"},
    }
    for section, figures in places.items():
        text = page.partition(f'<section id="{section}"')[2].partition("</section>")[0]
        assert figures <= set(re.findall('<figure id="figure-([^"]*)"', text)), section


def test_the_page_tells_depths_intervals_rules_and_where_they_come_from(page, study, tables):
    row = tables.intervals.query("model == 'toy-8l' and metric == 'cosine'").iloc[0]
    text = words_of(page).replace("&#39;", "'")
    for words in (
        f"{row.ed} ({row.ratio:.2f})",
        f"same in {100 * row.same:.0f} %",
        "the last l in 0..L-2 with c[l] &lt; 0 and c[l+1] ≥ 0",
        "nobody/toy-8l",
        f"torch {version('torch')}",
        *conclusions(study, tables.intervals, tables.beside_the_paper),
    ):
        assert words in text, words


def test_prompts_of_the_packages_own_and_toys_are_named_first(tmp_path):
    def save(model, dataset, source):
        meta = {"model_id": model, "source": source, "n_prompts": 10, "seed": 123}
        save_artifact(artifact_path(tmp_path, dataset, model, "logit_lens", 10), result_of("logit_lens", 8), meta)

    save("a-model", "gsm8k", "hub")
    save("b-model", "gsm8k", "sample")  # GSM8K's own first rows
    assert made_here(Study(tmp_path)) == ([], [])
    save("a-model", "hellaswag", "sample")
    save("toy-4l", "gsm8k", "embedded")
    study = Study(tmp_path)
    datasets, toys = made_here(study)
    assert sorted(datasets) == ["gsm8k (for some models)", "hellaswag"] and toys == ["toy-4l"]
    text = html.unescape(words_of(write_report(study, read_tables(study)).read_text()))
    prompts = f"Prompts of {', '.join(datasets)} were written for depth_lib"
    assert text.index(prompts) < text.index("show how the probes work: toy-4l.") < text.index("What the numbers say")


def test_names_that_are_markup_stay_text(tmp_path):
    meta = {"model_id": "<i>x</i>"}
    path = artifact_path(tmp_path, "gsm8k", "<b>&model", "logit_lens", 10)
    save_artifact(path, result_of("logit_lens", 4), meta)
    study = Study(tmp_path)
    page = write_report(study, read_tables(study)).read_text()
    assert "&lt;b&gt;&amp;model" in page and "<b>&model" not in page and "<i>x" not in page


def test_provenance_names_probes_that_were_made_otherwise(tmp_path):
    meta = {"model_id": "Qwen/X", "revision": "abc", "n_prompts": 10, "source": "hub"}
    for probe, dtype in (("logit_lens", "bfloat16"), ("relative_contribution", "float32")):
        save_artifact(artifact_path(tmp_path, "gsm8k", "X", probe, 10), result_of(probe, 4), meta | {"dtype": dtype})
    runs = provenance(Study(tmp_path))
    assert len(runs) == 2 and set(runs.run) == {"X, gsm8k"}
    assert re.search(r"logit_lens: Qwen/X; abc; bfloat16; 10 prompts; hub; .*torch", " ".join(runs.made_from))


def test_provenance_names_the_gguf_file_of_a_package_and_no_prompts_where_none_are_read(tmp_path):
    meta = {"model_id": "SmolLM2-135M-Instruct", "dtype": "float32", "source": "sample", "where": "local cpu"}
    gradients = artifact_path(tmp_path, "gsm8k", "X", "integrated_gradients", 10)
    save_artifact(gradients, result_of("integrated_gradients", 4), meta)
    (line,) = provenance(Study(tmp_path)).made_from
    assert "SmolLM2-135M-Instruct; SmolLM2-135M-Instruct.Q4_1.gguf; float32; local cpu; " in line
