"""Tests never wait for a network that is not there; one thread a process, so that sums come in one order everywhere."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
