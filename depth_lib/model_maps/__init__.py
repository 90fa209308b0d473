"""Is a deep model a stretched shallow one? Affine maps from every layer of one model to every layer of another.

texts.py cuts text into sequences and splits them, maps.py is `linear_maps`, regression.py the arithmetic, and
stretch.py the answer in numbers.
"""
