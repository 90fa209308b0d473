"""Is a deep model a stretched shallow one? Affine maps from every layer of one model to every layer of another.

texts.py cuts text into sequences and splits them · maps.py is `linear_maps`, one pass of text · regression.py is the
arithmetic · stretch.py is the answer in numbers.
"""
