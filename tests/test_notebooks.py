"""The notebooks as they are committed, and as papermill runs them on the smallest toy."""

import importlib.util
import json
import os
import shutil
import threading
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import nbformat
import papermill
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.text import SList
from jupyter_client.provisioning import local_provisioner

import depth_lib as dl
from depth_lib.params import PARAMETERS
from depth_lib.results.schemas import PROBES, artifact_path
from depth_lib.training.summary import conclusion, load_measured
from tests.forked import Kernel

ROOT = Path(__file__).parent.parent
NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
PROBE = {"MODEL": "toy-4l", "MODEL_ID": "toy-4l", "DATASET": "gsm8k", "N_EXAMPLES": 2}
every_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def code_cells(notebook, tag=None):
    return [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and (tag is None or tag in cell.metadata.get("tags", []))
    ]


@pytest.fixture(scope="module")
def execute(tmp_path_factory):
    """execute(name, **parameters): the notebook as papermill leaves it, run from a folder that is not the project's.

    Its kernel is forked; that notebooks run in kernels of their own, sweeps show (tests/sweep).
    """
    folder = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_provisioner, "launch_kernel", Kernel)
        patch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
        yield lambda name, **parameters: papermill.execute_notebook(
            ROOT / "notebooks" / f"{name}.ipynb",
            folder / f"{name}.ipynb",
            parameters,
            kernel_name="python3",
            cwd=folder,
            progress_bar=False,
        )


def printed(notebook):
    streams = [out for cell in code_cells(notebook) for out in cell.outputs if out.output_type == "stream"]
    return "".join(out.text for out in streams if out.name == "stdout")


def n_pictures(notebook):
    return sum("image/png" in out.get("data", {}) for cell in code_cells(notebook) for out in cell.outputs)


@every_notebook
def test_a_committed_notebook_is_valid_and_carries_no_outputs(name):
    nbformat.validate(NOTEBOOKS[name])
    assert all(not cell.outputs and cell.execution_count is None for cell in code_cells(NOTEBOOKS[name]))


@every_notebook
def test_a_committed_notebook_names_the_kernel_and_the_language_that_papermill_needs(name):
    metadata = NOTEBOOKS[name].metadata
    assert metadata.kernelspec == {
        "name": "python3",
        "display_name": metadata.kernelspec.display_name,
        "language": "python",
    }
    assert metadata.language_info.name == "python"


@every_notebook
def test_a_notebook_has_one_parameters_cell_with_a_comment_on_every_line(name):
    (cell,) = code_cells(NOTEBOOKS[name], "parameters")
    assert all("  # " in line for line in cell.source.splitlines())


@every_notebook
def test_code_cells_are_short_since_they_call_the_library(name):
    for cell in code_cells(NOTEBOOKS[name]):
        assert len(cell.source.splitlines()) <= 12 or "parameters" in cell.metadata.get("tags", []), cell.source


def test_what_the_probe_notebook_writes_is_what_the_table_reads_where_nobody_says_otherwise():
    cells = (code_cells(NOTEBOOKS[name], "parameters")[0].source for name in ("probe", "effective_depth"))
    folders = [line.split("#")[0] for cell in cells for line in cell.splitlines() if line.startswith("OUT = ")]
    assert len(folders) == 2 and len(set(folders)) == 1


def test_the_probe_notebook_takes_exactly_the_names_of_a_params_file():
    (cell,) = code_cells(NOTEBOOKS["probe"], "parameters")
    assert [line.split(" = ")[0] for line in cell.source.splitlines()] == list(PARAMETERS)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def first(execute, out):
    """The probe notebook run once, into an empty folder."""
    return execute("probe", **PROBE, OUT=str(out))


def paths(out):
    return {probe: artifact_path(out, "gsm8k", "toy-4l", probe, 2) for probe in PROBES}


def times(out):
    return {probe: path.stat().st_mtime_ns for probe, path in paths(out).items()}


def test_the_probe_notebook_leaves_every_result_and_shows_every_figure(first, out):
    assert all(path.is_file() for path in paths(out).values())
    assert printed(first).count(": computed in") == len(PROBES)
    assert n_pictures(first) == 8
    assert "toy-4l @ gsm8k :" in printed(first)


def test_a_second_run_computes_nothing_loads_nothing_and_shows_the_same_figures(first, execute, out):
    before = times(out)
    second = execute("probe", **PROBE, OUT=str(out))
    assert times(out) == before
    assert printed(second).count("nothing to compute") == len(PROBES)
    assert "loading" not in printed(second)
    assert n_pictures(second) == 8


def test_a_deleted_and_a_stale_result_are_computed_again_and_no_other(first, execute, out):
    lens, contribution = paths(out)["logit_lens"], paths(out)["relative_contribution"]
    lens.unlink()
    stored = torch.load(contribution)
    torch.save(stored | {"meta": stored["meta"] | {"revision": "other"}}, contribution)
    contribution_was = contribution.stat().st_mtime_ns
    untouched = {probe: path.stat().st_mtime_ns for probe, path in paths(out).items() if path.is_file()}
    again = execute("probe", **PROBE, OUT=str(out))
    assert "revision: stored other, asked None" in printed(again)
    changed = {probe for probe, time in times(out).items() if untouched.get(probe) != time}
    assert changed == {"logit_lens", "relative_contribution"} and contribution.stat().st_mtime_ns > contribution_was


def test_the_aggregation_shows_the_table_what_is_missing_and_every_figure(first, execute, out):
    notebook = execute("effective_depth", OUT=str(out), DATASETS=["gsm8k", "aime24"])
    assert "toy-4l @ gsm8k  :" in printed(notebook)
    assert "no artifact for aime24 × toy-4l" in printed(notebook) and "make sweep MODELS=toy-4l" in printed(notebook)
    drawn = list((out / "figures").rglob("*.png"))  # a kind each, the paper's over GSM8K, intervals and answers
    assert n_pictures(notebook) == len(drawn) >= 20
    assert (out / "report.html").read_text().count("<img") >= 10
    assert {path.name for path in out.glob("effective_depth.*")} == {
        f"effective_depth.{end}" for end in ("xlsx", "csv", "tex")
    }
    assert "torch.Size([4])" in printed(notebook)  # the authors' reading code


def test_quickstart_runs_from_top_to_bottom_with_a_picture_for_every_probe(execute):
    notebook = execute("quickstart", MODEL="toy-4l", N_EXAMPLES=1)
    assert n_pictures(notebook) == 9
    for rule in ("cosine", "KL", "overlap"):
        assert f"\n{rule}" in printed(notebook)


def last_layer_that_needs_each_term(model):
    """For a digit with the three characters behind it, the last row of the erasure map in which one matters."""
    prompts = dl.load_prompts("gsm8k", 5, source="embedded")
    effect = dl.residual_erasure(dl.load_model(model), "5 + 7 + 5 + 3 + 1 + 7 = ", "28", prompts)["erasure_effect"]
    return [int((effect[:, place : place + 4].amax(1) > 0.3).nonzero().max()) for place in range(0, 24, 4)]


def test_the_staircase_that_quickstart_tells_of_is_there_in_toy_4l_and_gone_in_toy_16l():
    stairs = last_layer_that_needs_each_term("toy-4l")
    assert stairs == sorted(stairs) and len(set(stairs)) >= 4
    first_terms = last_layer_that_needs_each_term("toy-16l")[:5]
    assert first_terms != sorted(first_terms)


def test_the_notebook_of_maps_shows_a_picture_and_a_sentence_a_pair(execute):
    notebook = execute("linear_maps", MODELS=["toy-4l", "toy-4l", "toy-8l"], N_CHARACTERS=4000)
    assert n_pictures(notebook) == 2
    assert (
        printed(notebook).count("See: the best layers stand in the same order, and 100%") == 1
    )  # of a model to itself
    assert printed(notebook).count("See: the best layers") == 2


def test_what_quickstart_says_of_toy_8ls_curves_is_so_of_5_prompts_and_of_10():
    llm, prompts = dl.load_model("toy-8l"), dl.load_prompts("gsm8k", 10, source="embedded")
    assert prompts[:5] == dl.load_prompts("gsm8k", 5, source="embedded")
    written, effects, lens = (
        probe(llm, prompts) for probe in (dl.relative_contribution, dl.layer_effects, dl.logit_lens)
    )
    for n in (5, 10):
        n_tokens = lens["n_tokens"][:n].sum()
        ratio, cosine = (written[f"{key}_sums"][:n].sum(0) / n_tokens for key in ("rc_layer", "layer_cos"))
        assert ratio.argsort(descending=True)[:2].tolist() == [0, 7] and ratio[0] > 10
        assert (cosine[:6] > 0.1).all() and (cosine[6:] < 0.01).all()
        later, out = (effects[f"max_future_{which}_by_prompt"][:n].amax(0) for which in ("layer", "out"))
        assert (later[0, 1:] > 1).all() and (out[[2, 4]] <= out[0] / 2).all()
        kl = lens["res_kl_divs_sums"][:n].sum(0) / n_tokens
        steps = kl - torch.cat([kl[1:], torch.zeros(1)])
        assert steps.argsort(descending=True)[:2].tolist() == [0, 7] and 0.2 < kl[7] / kl[0] < 0.3


def test_quickstarts_erasure_baseline_is_ten_prompts_of_gsm8k_whatever_the_dataset():
    (cell,) = (cell.source for cell in code_cells(NOTEBOOKS["quickstart"]) if "baseline = " in cell.source)
    asked, whatever = [], {"question": "", "answer": "", "prompts": ["of another dataset"], "DATASET": "hellaswag"}
    double = types.SimpleNamespace(
        load_prompts=lambda *how, **named: (how, named), residual_erasure=lambda *work, **_: asked.append(work)
    )
    exec(cell, whatever | {"dl": double, "shipped": "embedded", "llm": None, "REMOTE": False, "plot": print})
    assert asked[0][3] == (("gsm8k", 10), {"source": "embedded"})


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("probe", {"MODEL_ID": "toy-9l"}, "ModelError: no model is called 'toy-9l'; did you mean toy-"),
        (
            "effective_depth",
            {"OUT": "nowhere"},
            "/nowhere is not there; give the folder of a study, such as outputs/demo",
        ),
    ],
)
def test_bad_input_ends_the_notebook_with_one_line_that_names_it(execute, name, parameters, said):
    with pytest.raises(papermill.PapermillExecutionError) as raised:
        execute(name, **parameters)
    assert said in str(raised.value).strip().splitlines()[-1]


@pytest.fixture
def colab(monkeypatch):
    monkeypatch.setenv("COLAB_JUPYTER_IP", "172.28.0.12")
    monkeypatch.setenv("KMP_TARGET_PORT", "9000")


def sessions(opened):
    """What Colab's server says of the one notebook that is open."""
    return json.dumps([{"path": opened}])


def run_first_cell(monkeypatch, answer, installed, name="quickstart", owner="OWNER"):
    """What the first cell of a notebook, with this owner, asks pip for; answer(command): what a command prints."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    shell, asked = InteractiveShell(), []
    shell.register_magic_function(asked.append, "line", "pip")
    if answer is not None:
        shell.getoutput = lambda command, **_: SList([answer(os.path.expandvars(command))])
    shell.run_cell(code_cells(NOTEBOOKS[name])[0].source.replace("/OWNER/depth", f"/{owner}/depth")).raise_error()
    return asked


def opened(path):
    return {"curl --silent 172.28.0.12:9000/api/sessions": sessions(path)}.__getitem__


GITHUB = "fileId=https%3A%2F%2Fgithub.com%2Fsomebody%2Fdepth_lib%2Fblob%2Fmain%2Fnotebooks%2Fquickstart.ipynb"
GIST = "fileId=https%3A%2F%2Fgist.github.com%2Fsomebody%2F0123abcd"
LONE = pytest.mark.parametrize("path", ["fileId=1aBcD", GIST, "quickstart.ipynb"])


@every_notebook
def test_on_colab_the_first_cell_installs_the_package_from_the_repository_it_was_opened_from(colab, monkeypatch, name):
    asked = run_first_cell(monkeypatch, opened(GITHUB), installed=False, name=name)
    assert asked == ["install --quiet git+https://github.com/somebody/depth_lib@main"]


@every_notebook
@LONE
def test_on_colab_a_lone_file_or_gist_installs_what_its_first_cell_says(colab, monkeypatch, name, path):
    asked = run_first_cell(monkeypatch, opened(path), installed=False, name=name, owner="me")
    assert asked == ["install --quiet git+https://github.com/me/depth_lib"]


@every_notebook
@LONE
def test_on_colab_a_first_cell_that_nobody_edited_says_what_to_write_and_asks_pip_for_nothing(
    colab, monkeypatch, capsys, name, path
):
    with pytest.raises(SystemExit, match="^write where depth_lib is .* in the line package = …, and run this again$"):
        run_first_cell(monkeypatch, opened(path), installed=False, name=name)
    assert "Traceback" not in capsys.readouterr().out


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl here, as there is on Colab")
@pytest.mark.parametrize("listening", [True, False])
def test_the_first_cell_asks_colabs_server_itself_and_does_without_an_answer(monkeypatch, listening):
    class Sessions(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/api/sessions" else 404)
            self.end_headers()
            self.wfile.write(sessions(GITHUB).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Sessions) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("COLAB_JUPYTER_IP", "127.0.0.1")
        monkeypatch.setenv("KMP_TARGET_PORT", str(server.server_address[1]) if listening else "9")
        asked = run_first_cell(monkeypatch, None, installed=False, owner="me")
        server.shutdown()
    assert asked == [
        f"install --quiet git+https://github.com/{'somebody/depth_lib@main' if listening else 'me/depth_lib'}"
    ]


@every_notebook
def test_the_first_cell_installs_nothing_elsewhere(monkeypatch, name):
    monkeypatch.delenv("COLAB_JUPYTER_IP", raising=False)
    assert run_first_cell(monkeypatch, opened(GITHUB), installed=False, name=name) == []


@every_notebook
def test_the_first_cell_installs_nothing_where_the_package_is_there(colab, monkeypatch, name):
    assert run_first_cell(monkeypatch, opened(GITHUB), installed=True, name=name) == []


def test_the_notebook_about_difficulty_answers_with_a_slope_and_its_interval(execute):
    ran = execute("depth_by_difficulty", MODEL="toy-4l", N_PER_LEVEL=4)
    said = printed(ran)
    assert sum("image/png" in out.get("data", {}) for cell in code_cells(ran) for out in cell.outputs) == 1
    assert said.count("layers a level (levels 2 to 6), 95 % interval [") == 2 and "level 6: " in said


@pytest.mark.parametrize("swapped", [False, True])
def test_the_notebook_about_training_concludes_from_the_numbers_it_is_given(execute, tmp_path, swapped):
    measured = load_measured()
    if swapped:
        measured["kind"] = measured.kind.map({"ordinary": "shared", "shared": "ordinary"})
        measured["loss"] = measured.loss.map({"all": "answers", "answers": "all"})
        measured.to_csv(tmp_path / "swapped.csv", index=False)
    ran = execute("training", MEASURED=str(tmp_path / "swapped.csv") if swapped else None)
    assert n_pictures(ran) == 2 and f"\n{conclusion(measured)}\n" in f"\n{printed(ran)}"
    assert (conclusion(measured) == conclusion(load_measured())) != swapped
