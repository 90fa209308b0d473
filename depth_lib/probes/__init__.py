"""The probes, one file each: on top what users call, below it `measure_<name>`, which runs where the model is.

Strings in, a dict of float32 tensors on the CPU out: a `Result` with `plot`, `depths`, `to_frame` and `save`.
`with_origin` adds what its file will say of model, prompts and settings. In a trace, a probe works with
`residual/stream.py`: h_0..h_L of a prompt, and blocks that can be called.

remote: False (this machine), True (NDIF), "local" (this machine, through NDIF's serialisation: a test of a remote call)
or a host's URL. On a server the prompts are one job, or several of DEPTH_LIB_PROMPTS_PER_JOB prompts (environment;
default: 1000 / blocks), and one question's layers one job, or several of DEPTH_LIB_LAYERS_PER_JOB. Several jobs give
what one job gives, bit for bit. Erasure is the exception: its layers then share smaller batches. In float32 they agree
to 1e-6 of the largest value. In half precision, in TF32 (off unless `torch.set_float32_matmul_precision` or a server
allows it) or with quantised weights, they agree to the rounding of the products. NaN and infinity raise a
ValueError, in `run` or in the probe itself.

`measure_<name>` is sent to a server by value, with all functions that it calls: those of its file, of other probes and
of `residual/`. It may use torch, and its arguments are plain: token ids, numbers, tensors.
"""
