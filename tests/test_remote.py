"""Remote runs against the loopback server: the local numbers, the journal, the parts, and what is said meanwhile."""

import _thread
import json
import signal
import sys
import threading

import pytest
import torch

import depth_lib as dl
from depth_lib import session
from depth_lib.remote import NotReady, beside, journal
from depth_lib.remote.server import Server
from depth_lib.remote.status_line import StatusLine
from tests.loopback.client import PROBES, TEXTS
from tests.loopback.fixture import KEY, hurried, loopback, same  # noqa: F401 (fixtures)


@pytest.fixture(scope="module", params=["loopback/llama", "loopback/gpt2", "loopback/falcon"])
def both(request, loopback):  # noqa: F811
    """(the client's model without weights, the same model here)."""
    return loopback.model(request.param), dl.load_model(loopback.models[request.param])


@pytest.mark.parametrize("probe", PROBES)
def test_a_probe_on_the_server_gives_the_local_numbers_bit_for_bit(both, probe, loopback):  # noqa: F811
    there, here = both
    same(PROBES[probe](there, remote=loopback.host), PROBES[probe](here))
    assert all(parameter.is_meta for parameter in there._module.parameters())


def test_the_server_speaks_to_nnsights_own_client(loopback, monkeypatch):  # noqa: F811
    """What the server is held to: the protocol as nnsight itself uses it, by address and inline."""
    monkeypatch.setattr("nnsight.CONFIG.API.APIKEY", KEY)
    llm = loopback.model("loopback/llama")
    expected = session.run(_norm, llm, [5, 6, 7], remote=loopback.host)["norm"]
    for inline in (False, True):
        with loopback.faults(inline=inline):
            assert torch.equal(_by_nnsight(llm, loopback.host)["norm"], expected)


def _norm(llm, ids):
    with llm.trace({"input_ids": torch.tensor([ids])}) as tracer:
        norm = llm.blocks[1].output[0].norm(dim=-1).cpu()
        tracer.stop()
    return {"norm": norm}


def _by_nnsight(llm, host):
    import nnsight

    with llm.session(remote=host):
        result = nnsight.save(_norm(llm, [5, 6, 7]))
    return result


def test_ten_prompts_of_a_32_block_model_are_one_small_job_a_probe(loopback):  # noqa: F811
    llm = loopback.model("loopback/deep")
    prompts = [f"{k} and 7 make {k + 7}" for k in range(10)]
    for probe in (dl.relative_contribution, dl.layer_effects, dl.logit_lens):
        since = len(loopback.asked()["log"])
        probe(llm, prompts, remote=loopback.host)
        (job,) = loopback.requests("POST", "/request", since)
        (download,) = loopback.requests("GET", "/results", since)
        assert int(job["headers"]["loopback-payload"]) < 16_000
        assert download["bytes"] < 1_000_000


def test_a_split_run_equals_the_unsplit_one(loopback, monkeypatch):  # noqa: F811
    llm = loopback.model("loopback/llama")
    for probe in ("relative_contribution", "layer_effects", "logit_lens"):
        with loopback.faults() as submitted:
            whole = PROBES[probe](llm, remote=loopback.host)
            assert submitted() == 1
        with loopback.faults() as submitted, monkeypatch.context() as patch:
            patch.setenv("DEPTH_LIB_PROMPTS_PER_JOB", "1")
            same(PROBES[probe](llm, remote=loopback.host), whole)
            assert submitted() == 3


def test_layers_in_several_jobs_equal_all_in_one(loopback, monkeypatch):  # noqa: F811
    llm = loopback.model("loopback/llama")
    whole = PROBES["integrated_gradients"](llm, remote=loopback.host)
    monkeypatch.setenv("DEPTH_LIB_LAYERS_PER_JOB", "3")
    with loopback.faults() as submitted:
        same(PROBES["integrated_gradients"](llm, remote=loopback.host), whole)
        assert submitted() == 2  # of 4 layers


@pytest.mark.parametrize("variable", ["DEPTH_LIB_PROMPTS_PER_JOB", "DEPTH_LIB_DEADLINE"])
def test_a_setting_that_is_no_number_is_named(loopback, monkeypatch, variable):  # noqa: F811
    monkeypatch.undo()
    monkeypatch.setenv("NDIF_API_KEY", KEY)
    monkeypatch.setenv(variable, "many")
    with pytest.raises(NotReady, match=f"{variable} is 'many'"):
        dl.logit_lens(loopback.model("loopback/llama"), TEXTS, remote=loopback.host)


def test_a_run_interrupted_between_parts_repeats_none_that_arrived(loopback, monkeypatch, tmp_path):  # noqa: F811
    llm, artifact = loopback.model("loopback/llama"), tmp_path / "logitlens_3exps.pt"
    whole = dl.logit_lens(llm, TEXTS, remote=loopback.host)
    monkeypatch.setenv("DEPTH_LIB_PROMPTS_PER_JOB", "1")
    with loopback.faults(post=[None, None, 400]) as submitted:
        with pytest.raises(dl.remote.RequestRefused), beside(artifact):
            dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 2
    assert len(list((tmp_path / "logitlens_3exps.pt.job").glob("*.pt"))) == 2
    with loopback.faults() as submitted, beside(artifact):
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), whole)
        assert submitted() == 1
    assert not list(tmp_path.iterdir())


def test_the_journal_is_complete_before_the_first_question_about_the_job(loopback, monkeypatch, tmp_path):  # noqa: F811
    seen, ask = [], Server.poll

    def poll(server, job_id):
        seen.extend(json.loads(file.read_text()) for file in tmp_path.glob("a.pt.job/*.json"))
        return ask(server, job_id)

    monkeypatch.setattr(Server, "poll", poll)
    with beside(tmp_path / "a.pt"):
        dl.logit_lens(loopback.model("loopback/llama"), TEXTS, remote=loopback.host)
        assert KEY not in "".join(file.read_text() for file in tmp_path.glob("a.pt.job/*.json"))
    first = seen[0]
    assert first["state"] == "submitted" and first["job_id"] in loopback.asked()["jobs"]
    assert first["host"] == loopback.host and first["probe"] == "logit_lens" and len(first["settings"]) == 16
    assert first["artifact"] == str(tmp_path / "a.pt")


def test_a_result_that_came_but_was_not_written_is_not_computed_again(loopback, tmp_path):  # noqa: F811
    llm = loopback.model("loopback/llama")
    with pytest.raises(OSError, match="disk full"), beside(tmp_path / "a.pt"):
        first = dl.logit_lens(llm, TEXTS, remote=loopback.host)
        raise OSError("disk full")
    with loopback.faults(post=[500] * 9) as submitted, beside(tmp_path / "a.pt"):
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), first)
        assert submitted() == 0


def test_other_settings_are_another_job(loopback, tmp_path):  # noqa: F811
    llm = loopback.model("loopback/llama")
    with loopback.faults() as submitted, beside(tmp_path / "a.pt"):
        first = dl.logit_lens(llm, TEXTS, remote=loopback.host)
        dl.logit_lens(llm, TEXTS[:2], remote=loopback.host)
        same(dl.logit_lens(llm, TEXTS, remote=loopback.host), first)
        assert submitted() == 2


def test_without_an_artifact_the_journal_is_in_the_cache_folder_until_the_result_is_returned(loopback):  # noqa: F811
    llm = loopback.model("loopback/llama")
    with loopback.faults(poll=[401]), pytest.raises(dl.remote.RequestRefused):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
    assert [json.loads(file.read_text())["state"] for file in journal.cache_folder().iterdir()] == ["submitted"]
    with loopback.faults() as submitted:
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 0
    assert not list(journal.cache_folder().iterdir())


def test_a_damaged_journal_is_kept_aside_and_the_job_submitted_anew(loopback):  # noqa: F811
    llm = loopback.model("loopback/llama")
    with loopback.faults(poll=[401]), pytest.raises(dl.remote.RequestRefused):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
    (file,) = journal.cache_folder().iterdir()
    file.write_text('{"settings": "12')
    with loopback.faults() as submitted, pytest.warns(UserWarning, match="could not be read"):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 1
    assert file.with_name(file.name + ".unreadable-1").exists()


def test_ctrl_c_keeps_the_job_and_says_how_to_continue(loopback, capfd):  # noqa: F811
    llm = loopback.model("loopback/llama")
    with loopback.faults(hold="RUNNING") as submitted:
        noticed = threading.Event()

        def press():  # again after a while: an interrupt inside a finaliser is swallowed by the interpreter
            while not noticed.wait(5):
                _thread.interrupt_main()

        # a shell's background jobs ignore the signal, and so would the tests under one
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=press, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            dl.logit_lens(llm, TEXTS, remote=loopback.host)
        noticed.set()
        signal.signal(signal.SIGINT, before)
        said = capfd.readouterr().err
        (job,) = [json.loads(file.read_text())["job_id"] for file in journal.cache_folder().iterdir()]
        assert job in said and "the same call picks it up" in said
        loopback.switch()
        dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 1


def test_nothing_is_said_where_nobody_watches(loopback, capfd):  # noqa: F811
    llm = loopback.model("loopback/llama")
    capfd.readouterr()
    dl.logit_lens(llm, TEXTS, remote=loopback.host)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_one_line_that_is_rewritten(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    line = StatusLine("logit lens")
    line.show("queued \x1b[2J position 3\nsecond line")
    line.show("running")
    line.end("done")
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and shown.endswith("logit lens: done (0:00)\n")
    assert "second line" not in shown and "\x1b[2J" not in shown and "position 3" in shown


@pytest.mark.parametrize("remote", ["locl", "api.ndif.us", "http://", 1])
def test_a_remote_that_is_no_host_is_refused_with_what_it_may_be(remote, loopback):  # noqa: F811
    with pytest.raises(NotReady, match='use True, False, "local" or a URL'):
        dl.logit_lens(loopback.model("loopback/llama"), TEXTS, remote=remote)


def test_the_configured_server_needs_a_key(loopback, monkeypatch):  # noqa: F811
    monkeypatch.delenv("NDIF_API_KEY")
    monkeypatch.setattr("nnsight.CONFIG.API.APIKEY", None)
    with pytest.raises(NotReady, match="NDIF_API_KEY"):
        dl.logit_lens(loopback.model("loopback/llama"), TEXTS, remote=True)


def test_remote_true_goes_to_the_configured_host(loopback, monkeypatch):  # noqa: F811
    monkeypatch.setenv("NDIF_HOST", loopback.host + "/")
    with loopback.faults() as submitted:
        dl.logit_lens(loopback.model("loopback/llama"), TEXTS, remote=True)
        assert submitted() == 1


def test_a_local_folder_cannot_be_named_to_a_server(loopback, monkeypatch):  # noqa: F811
    llm = loopback.model("loopback/llama")
    monkeypatch.setattr("nnsight.modeling.huggingface._ID_CACHE", {})
    with pytest.raises(NotReady, match="load it by its Hub id"):
        dl.logit_lens(llm, TEXTS, remote=loopback.host)


@pytest.mark.parametrize(
    "faults, sentence",
    [
        ({"absent": ["loopback/gpt2"]}, "loopback/gpt2 is not hosted there; running are .*loopback/"),
        ({"state": "DEPLOYING"}, "not running .DEPLOYING.; run again in some minutes"),
        ({"env": {"packages": {"nnsight": "0.7.2"}}}, "pip install nnsight==0.7.2"),
    ],
)
def test_what_would_fail_on_the_server_is_said_before_anything_is_sent(loopback, faults, sentence):  # noqa: F811
    with loopback.faults(**faults) as submitted:
        with pytest.raises(NotReady, match=sentence):
            dl.logit_lens(loopback.model("loopback/gpt2"), TEXTS, remote=loopback.host)
        assert submitted() == 0


def test_another_torch_on_the_server_is_worth_a_warning(loopback):  # noqa: F811
    with loopback.faults(env={"packages": {"torch": "1.0"}}), pytest.warns(UserWarning, match="runs torch 1.0"):
        dl.logit_lens(loopback.model("loopback/gpt2"), TEXTS, remote=loopback.host)


def test_a_request_with_a_large_tensor_is_not_sent(loopback):  # noqa: F811
    noise = torch.randn(5_000_000)
    with loopback.faults() as submitted:
        with pytest.raises(NotReady, match="request has .* MB: a tensor made here travels"):
            session.run(_plus, loopback.model("loopback/llama"), noise, remote=loopback.host)
        assert submitted() == 0


def _plus(llm, noise):
    return {"sum": noise.sum()}


def test_the_first_job_checks_the_servers_model(loopback, monkeypatch):  # noqa: F811
    llm = loopback.model("loopback/gpt2")
    wrong = dl.architectures.describe(llm) | {"logit_softcap": 3.0}
    monkeypatch.setattr("depth_lib.session.describe", lambda llm: wrong)
    with loopback.faults() as submitted:
        with pytest.raises(dl.architectures.ArchitectureError, match="identity 2 fails"):
            dl.logit_lens(llm, TEXTS, remote=loopback.host)
        assert submitted() == 1


def test_check_model_on_the_server_measures_what_it_measures_here(loopback):  # noqa: F811
    there, here = loopback.model("loopback/gpt2"), dl.load_model(loopback.models["loopback/gpt2"])
    with loopback.faults() as submitted:
        assert dl.check_model(there, remote=loopback.host) == dl.check_model(here)
        assert submitted() == 1
