"""The page: one file, every figure in its place by name, and what a reader has to know stands first."""

import re
import warnings
from html.parser import HTMLParser

import pytest
import torch

from depth_lib.report.conclusions import conclusions
from depth_lib.report.page import draw_figures, notices, write_report
from depth_lib.report.table import provenance, read_tables
from depth_lib.results.artifacts import save_artifact
from depth_lib.results.schemas import artifact_path
from depth_lib.results.study import Study
from tests.synthetic import DATASETS, curves_with_depths, result_of, write_run


class Page(HTMLParser):
    """The images, links, words and sections of a page, without its scripts; every tag that opens closes."""

    def __init__(self, text):
        super().__init__()
        self.images, self.links, self.words, self.open = [], [], [], []
        self.sections, self.place_of = [], {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.links += [attrs[key] for key in ("href", "src") if key in attrs]
        if tag == "section":
            self.sections.append(attrs["id"])
        if tag == "figure":
            self.place_of[attrs["id"]] = self.sections[-1]
        if tag == "img":
            self.images.append(attrs)
        if tag not in ("meta", "img", "wbr", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(text)

    @property
    def text(self):
        return " ".join("".join(self.words).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    write_run(out, "gsm8k", "toy-8l", 8, n_examples=4)
    write_run(out, "gsm8k", "Qwen2.5-7B-Instruct", 28, n_examples=4)
    write_run(out, "hellaswag", "toy-8l", 8, ["logit_lens"], n_examples=4)
    return out


@pytest.fixture(scope="module")
def study(folder):
    return Study(folder, datasets=DATASETS)


@pytest.fixture(scope="module")
def tables(study):
    return read_tables(study)


@pytest.fixture(scope="module")
def page(study, tables):
    return Page(write_report(study, tables, draw_figures(study, tables)).read_text())


def test_the_page_is_one_file_that_needs_nothing_else(page):
    images = [link for link in page.links if link.startswith("data:image/webp;base64,")]
    inside = [link for link in page.links if link.startswith("#")]
    assert len(images) == len(set(images)) == len(page.images) > 12
    assert len(images) + len(inside) == len(page.links)
    assert list(dict.fromkeys(inside))[: len(page.sections)] == [f"#{section}" for section in page.sections]
    assert all(image["alt"] for image in page.images)


def test_every_figure_stands_where_its_name_belongs(page):
    assert page.place_of["figure-ratio_intervals"] == "depths"
    assert page.place_of["figure-thresholds"] == "thresholds"
    assert page.place_of["figure-ratio_by_size"] == page.place_of["figure-ratio_by_task"] == "questions"
    assert page.place_of["figure-proxies"] == "proxies"
    assert page.place_of["figure-cosine"] == "figures"


def test_without_any_depth_the_proxies_do_not_stand_under_effective_depth(tmp_path):
    for probe, result in curves_with_depths(4, None, None, None).items():
        result["io_cos"] = torch.tensor([0.5, 0.6, 0.7, 0.8])
        save_artifact(artifact_path(tmp_path, "gsm8k", "toy-4l", probe, 10), result, {})
    save_artifact(
        artifact_path(tmp_path, "gsm8k", "toy-4l", "layer_effects", 10), result_of("layer_effects", 4), {"seed": 1}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = Study(tmp_path)
        tables = read_tables(study)
        page = Page(write_report(study, tables, draw_figures(study, tables)).read_text())
    assert page.place_of["figure-proxies"] == "proxies"
    assert "depths" not in page.place_of.values()


def test_the_page_tells_depths_intervals_rules_and_where_they_come_from(page, tables):
    row = tables.intervals.query("model == 'toy-8l' and metric == 'cosine'").iloc[0]
    for words in (
        f"{row.ed} ({row.ratio:.2f})",
        f"same in {100 * row.same:.0f} %",
        "the last l in 0..L-2 with c[l] < 0 and c[l+1] ≥ 0",
        "KL(lens ‖ output)",
        "five likeliest tokens among the lens's five",
        "every draw gave 1, and that 2 is not ruled out",
        "nobody/toy-8l",
        f"torch {torch.__version__}",
        "arXiv 2512.14064",
        *conclusions(tables.intervals, tables.beside_the_paper),
    ):
        assert words in page.text, words


def test_prompts_of_the_packages_own_and_toys_are_named_first(tmp_path):
    def save(model, dataset, source):
        meta = {"model_id": model, "source": source, "n_prompts": 10, "seed": 123}
        result = result_of("logit_lens", 8)
        save_artifact(artifact_path(tmp_path, dataset, model, "logit_lens", 10), result, meta)

    save("a-model", "gsm8k", "hub")
    save("a-model", "aime24", "hub")
    assert notices(Study(tmp_path)) == []
    save("a-model", "gsm8k", "sample")  # GSM8K's own first rows
    assert notices(Study(tmp_path)) == []
    save("a-model", "hellaswag", "sample")
    save("toy-4l", "gsm8k", "embedded")
    prompts, toys = notices(Study(tmp_path))
    assert prompts.startswith("Prompts of gsm8k (for some models), hellaswag were written for depth_lib")
    assert toys.startswith("toy-4l: toy model")
    study = Study(tmp_path)
    text = Page(write_report(study, read_tables(study)).read_text()).text
    assert text.index(prompts) < text.index("What the numbers say")


def test_names_that_are_markup_stay_text(tmp_path):
    name = "<b>&model"
    for probe, result in curves_with_depths(4, 1, 1, 1).items():
        save_artifact(artifact_path(tmp_path, "gsm8k", name, probe, 10), result, {"model_id": "<i>x</i>"})
    study = Study(tmp_path)
    page = write_report(study, read_tables(study)).read_text()
    assert "&lt;b&gt;&amp;model" in page and name not in page and "<i>x" not in page


def test_results_with_only_the_papers_keys_give_a_page_that_says_so(tmp_path):
    probes = ["relative_contribution", "logit_lens"]
    write_run(tmp_path, "gsm8k", "Qwen2.5-7B-Instruct", 28, probes, papers_keys_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = Study(tmp_path)
        tables = read_tables(study)
        page = Page(write_report(study, tables).read_text())
    assert page.text.count("no interval") >= 3
    assert "not written by depth_lib" in tables.provenance.made_from.item()


def test_provenance_names_probes_that_were_made_otherwise(tmp_path):
    meta = {"model_id": "Qwen/X", "revision": "abc", "n_prompts": 10, "source": "hub"}
    for probe, dtype in (("logit_lens", "bfloat16"), ("relative_contribution", "float32")):
        save_artifact(artifact_path(tmp_path, "gsm8k", "X", probe, 10), result_of(probe, 4), meta | {"dtype": dtype})
    runs = provenance(Study(tmp_path))
    assert len(runs) == 2 and set(runs.run) == {"X, gsm8k"}
    assert re.search(r"logit_lens: Qwen/X @ abc; bfloat16; 10 prompts \(hub\); .*torch", " ".join(runs.made_from))
