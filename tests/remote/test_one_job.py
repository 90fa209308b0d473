"""All probes of a model × dataset as one job: the same numbers, nothing computed twice, within a time bound."""

from functools import partial

import pytest

import depth_lib as dl
from depth_lib import one_job, remote, session
from depth_lib.one_job import together
from depth_lib.remote import journalled
from depth_lib.remote.journal import Entry
from depth_lib.sweep.run import Run
from tests.remote.loopback import fixture
from tests.remote.loopback.client import PROBES, TEXTS
from tests.remote.loopback.fixture import same

hurried, loopback = fixture.hurried, fixture.loopback


@pytest.fixture(scope="module")
def truth(loopback):
    here = loopback.here("loopback/llama")
    return {name: call(here) for name, call in PROBES.items()}


def wanted(llm, loopback, folder):
    return [(folder / f"{name}.pt", partial(call, llm, remote=loopback.host)) for name, call in PROBES.items()]


def check(calls, truth, loopback):
    """Each call finds its result, without any other job."""
    with loopback.faults() as submitted:
        for (artifact, call), expected in zip(calls, truth.values(), strict=True):
            with journalled(artifact) as jobs:
                same(call(), expected)
            assert jobs[0]["id"] and len({job["id"] for job in jobs}) == 1
        assert submitted() == 0


def test_six_calls_of_five_probes_are_one_job_with_the_same_numbers(loopback, truth, tmp_path):
    llm = loopback.model("loopback/llama")
    calls = wanted(llm, loopback, tmp_path)
    with loopback.faults() as submitted:
        together(llm, calls, loopback.host, tmp_path / "probes")
        assert submitted() == 1
        together(llm, calls, loopback.host, tmp_path / "probes")
        assert submitted() == 1
    assert dl.check_model(llm)["identity_1"] <= 1e-5  # came along
    check(calls, truth, loopback)
    assert not list(tmp_path.iterdir())


def test_a_job_begins_nothing_after_its_time_and_the_next_one_goes_on_there(loopback, truth, tmp_path, monkeypatch):
    llm = loopback.model("loopback/llama")
    calls, n_pieces = wanted(llm, loopback, tmp_path), 4 * len(TEXTS) + 2
    monkeypatch.setattr(session, "MINUTES_PER_JOB", 0)
    with loopback.faults() as submitted:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(one_job, "_missing", _dying_after(7, one_job._missing))
            together(llm, calls, loopback.host, tmp_path / "probes")
        assert submitted() == 7
        together(llm, calls, loopback.host, tmp_path / "probes")
        assert submitted() == n_pieces
    check(calls, truth, loopback)
    assert not list(tmp_path.iterdir())


def _dying_after(n, function):
    asked = []

    def dies(*arguments):
        asked.append(1)
        if len(asked) > n:
            raise KeyboardInterrupt
        return function(*arguments)

    return dies


def test_who_is_killed_while_results_are_put_away_computes_none_again(loopback, truth, tmp_path, monkeypatch):
    llm, keep, kept = loopback.model("loopback/llama"), Entry.keep, []
    calls = wanted(llm, loopback, tmp_path)

    def dies(entry, *content, **facts):
        kept.append(entry)
        if len(kept) == 4:
            raise KeyboardInterrupt
        keep(entry, *content, **facts)

    with loopback.faults() as submitted:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Entry, "keep", dies)
            together(llm, calls, loopback.host, tmp_path / "probes")
        together(llm, calls, loopback.host, tmp_path / "probes")
        assert submitted() == 1
    check(calls, truth, loopback)


def _fails(llm, number):
    return {"x": 1 / number}


def test_a_call_that_fails_costs_none_of_those_before_it(loopback, truth, tmp_path):
    llm = loopback.model("loopback/llama")
    calls = wanted(llm, loopback, tmp_path)[:2]
    failing = (tmp_path / "f.pt", lambda: session.run(_fails, llm, 0, remote=loopback.host))
    with loopback.faults() as submitted:
        with pytest.raises(remote.JobFailed, match="ZeroDivisionError"):
            together(llm, [*calls, failing], loopback.host, tmp_path / "probes")
        assert submitted() == 2
    check(calls, dict(list(truth.items())[:2]), loopback)


def test_a_run_of_a_sweep_is_one_job(loopback, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("depth_lib.sweep.run.load_model", lambda *_, **__: loopback.model("loopback/toy-4l"))
    cell = {
        "MODEL": "Hosted",
        "MODEL_ID": "loopback/toy-4l",
        "REVISION": None,
        "DTYPE": "float32",
        "QUANTIZATION": None,
        "DEVICE_MAP": None,
        "REMOTE": loopback.host,
        "DATASET": "gsm8k",
        "N_EXAMPLES": 2,
        "SOURCE": "embedded",
        "PROBES": list(dict.fromkeys(name.removesuffix("_all") for name in PROBES)),
        "SEED": 123,
    }
    results = {}
    for jobs, expected in (("one", 1), ("", 6)):
        monkeypatch.setenv("DEPTH_LIB_JOBS", jobs)
        with loopback.faults() as submitted:
            run = Run(cell | {"OUT": str(tmp_path / (jobs or "each"))})
            results[jobs] = {probe: run.result(probe) for probe in cell["PROBES"]}
            assert submitted() == expected
    for probe, result in results["one"].items():
        meta = result.pop("meta")
        assert meta["runs"]["dtype"] == "float32" and meta["runs"]["weights"] == "Linear of float32"
        assert meta["runs"]["quantized"] is False and meta["jobs"][0]["versions"]["torch"]
        results[""][probe].pop("meta")
        same(result, results[""][probe])
    assert not list(tmp_path.rglob("*.job"))
