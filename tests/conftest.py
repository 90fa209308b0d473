"""Tests never wait for a network that is not there, and leave a core to whoever shares the machine."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "2")
