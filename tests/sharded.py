"""One rank of a training whose weights are sharded with FSDP2; prints how a callback's measurement ends."""

import datetime
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import TrainerControl, TrainerState, TrainingArguments

import depth_lib as dl
from tests.test_training import PROMPTS, small
from tests.tiny_tokenizers import char_tokenizer

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=40))
mesh, model = init_device_mesh("cpu", (2,)), small()
for block in model.model.layers:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
rank, state = dist.get_rank(), TrainerState()
state.is_world_process_zero = rank == 0
callback, arguments = dl.DepthCallback(PROMPTS), TrainingArguments(sys.argv[1], use_cpu=True, report_to=[])
try:
    callback.on_train_begin(arguments, state, TrainerControl(), model=model, processing_class=char_tokenizer())
    os.write(1, f"rank {rank}: measured\n".encode())
except ValueError as error:
    os.write(1, f"rank {rank}: {error}\n".encode())  # in one piece, as two ranks write
dist.destroy_process_group()
