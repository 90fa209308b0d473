"""Is a deep model a stretched shallow one? Affine maps from every layer of one model to every layer of another.

texts.py cuts text into sequences and splits them · plan.py says what fits into memory · reading.py is where states come
from · regression.py is the arithmetic · maps.py is `linear_maps`, one pass of text · checkpoint.py survives a kill ·
stretch.py is the answer in numbers.
"""
