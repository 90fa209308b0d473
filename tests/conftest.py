"""Tests never wait for a network that is not there, and run on one thread per process unless OMP_NUM_THREADS says
otherwise: their models are too small for more."""

import functools
import gc
import os
import ssl
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start, too
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded: threads that wait leave the core

if os.environ.get("ATEN_CPU_CAPABILITY") == "default":  # torch's attention packs bfloat16 for AMX all the same: fails
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "SSE41")

for name in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"):  # of the make that runs the tests; some run make
    os.environ.pop(name, None)

os.fsync = lambda descriptor: None  # 6 ms each: what tests write need not outlive a power cut
ssl.create_default_context = functools.cache(ssl.create_default_context)  # 28 ms each: it reads the certificates

sys.modules["rfc3987_syntax"] = None  # which jsonschema builds a grammar with, as long as a tenth of all imports

import pytest  # noqa: E402  (and no torch: the process that hands out the tests has no use for it)

# Where CI is set, a test may skip only for these reasons, each with why CI cannot have it; any other skip fails.
MAY_SKIP = {
    "needs NDIF_LIVE": "the live service costs money and needs somebody's key",
    "needs root, slurm-wlm and munge": "a cluster's daemons; the job array's four lines are on docs/sweeps.md",
    "DEPTH_LIB_SMALL": "a file of half a gigabyte that the user brings",
    "no LaTeX here": "gigabytes; the table's TeX is compared as text",
    "there is no Chromium": "a browser is a package of the system, which .ci/run does not install",
    "the bridge": "TransformerLens does not give this checkpoint's own logits, so it cannot judge ours",
}


def may_skip(report):
    """Whether this report is not a skip, or is one that CI may have."""
    if not report.skipped or hasattr(report, "wasxfail") or not os.environ.get("CI"):
        return True
    return any(reason in report.longrepr[2] for reason in MAY_SKIP)


def honest(report):
    """The report; a skip for a reason that is not in MAY_SKIP has become a failure."""
    if not may_skip(report):
        report.outcome, report.longrepr = "failed", f"{report.longrepr[2]}: not in MAY_SKIP of tests/conftest.py"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return honest((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return honest((yield))


@pytest.fixture(scope="session")
def toy():
    """toy-4l, for tests that do not change it."""
    import depth_lib as dl

    return dl.load_model("toy-4l")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """The 700,000 objects of the modules are never garbage: the collector looks at none while they are made, and at
    them no more."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


# What takes long, in this order; the many short tests come last and fill up. The first starts the loopback server and
# waits for none: while that imports what it needs, tests/results run.
LONG = ("remote/test_faults.py::test_a_host_where_nobody_listens", "results", "remote", "real", "test_pages")
LONG += ("effective_depth/test_no_signal", "models/test_kinds", "probes/test_probes")
LONG += ("sweep/test_make", "test_notebooks", "figures", "report")
LONG += ("third_party", "test_files", "test_contributing", "sweep", "test_hub", "probes", "parallel")


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):  # side by side
        places = [f"tests/{place}" for place in LONG]
        items.sort(key=lambda item: next((k for k, p in enumerate(places) if item.nodeid.startswith(p)), len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.option.dist != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        """Tests that share what takes seconds to make run in one process: a server's, the real model's, a family's, a
        module's. Each page for users is run alone."""

        def _split_scope(self, nodeid):
            file, _, name = nodeid.partition("::")
            if file.startswith(("tests/remote/", "tests/results/")):
                return "remote"
            if file.startswith("tests/real/"):
                return "real"
            of = name.partition("[")[2].partition("-")[0].removesuffix("]")
            return f"{file}[{of}]" if file in ("tests/probes/test_probes.py", "tests/test_pages.py") else file

    config.option.loadscopereorder = False
    return Scheduling(config, log)
