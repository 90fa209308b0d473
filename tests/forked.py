"""Processes that are forked from one which has imported the package and computed nothing, since torch's threads do not
survive a fork: they are there at once, where a fresh Python imports torch and nnsight for seconds."""

import multiprocessing

import nnsight  # noqa: F401 (here and below: so that it is there)
import pandas  # noqa: F401

import depth_lib.models.load
import depth_lib.probes.layer_effects
import depth_lib.report.table
import depth_lib.run  # noqa: F401

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload([__name__])
