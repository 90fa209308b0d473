"""The commands of depth-lib.

A run is one model on one dataset: the notebook notebooks/probe.ipynb, executed with a cell of parameters (a None there
means: take it from the params files), in `OUT/<dataset>/<MODEL>/`. From a command to its numbers: `cli` reads the
words, `plan` lists the runs, `launch` executes the notebooks of the unfinished ones (`processes`, `execute`), in each
of which a `run.Run` reads or computes every result; `status` says how far they are, `table` puts them together. `maps`
is apart: linear maps between two models.
"""
