"""Tests never wait for a network that is not there, and run on one thread a process: their models are too small for
more, and sums come in one order everywhere."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start, too

import torch  # noqa: E402

torch.set_num_threads(1)
