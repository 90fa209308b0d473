"""The probes, one file each: on top what users call, below it `measure_<name>`, which runs where the model is.

Strings in, a dict of float32 tensors on the CPU out, with `plot`, `depths`, `to_frame` and `save`. What a probe does
inside a trace is written on `residual/stream.py`: h_0..h_L of a prompt, and blocks that can be called.

remote: False (this machine), True (NDIF), "local" (this machine, through NDIF's serialisation: a test of a remote call)
or a host's URL. On a server the prompts are one job, or several of DEPTH_LIB_PROMPTS_PER_JOB prompts (environment;
default: 1000 / blocks), and one question's layers one job, or several of DEPTH_LIB_LAYERS_PER_JOB. Several jobs give
what one job gives, bit for bit; only the layers of erasure give it to rounding, as they share a batch with fewer
others: in float32 to 1e-6 of the largest value, in half precision, in TF32 (off unless
`torch.set_float32_matmul_precision` or a server allows it) or with quantised weights only to the rounding of their
products. Numbers that are NaN or infinite are a ValueError.

`measure_<name>` imports torch and what else travels, and its arguments are plain: token ids, numbers, tensors.
"""
