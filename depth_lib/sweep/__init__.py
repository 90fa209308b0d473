"""The commands of depth-lib.

A sweep executes notebooks/probe.ipynb for each model × data set with papermill, in `OUT/<dataset>/<MODEL>/`. `cli` has
the commands, `execute` runs notebooks side by side, `status` tells how far runs are, `table` makes the table of their
results. A run, and whether its results are there, is in run.py.
"""
