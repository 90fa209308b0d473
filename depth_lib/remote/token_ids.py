"""Token ids as few bytes: most of what a request of many prompts holds, and what compression finds least in.

All lists of ids of a request are one, laid out in three planes: the low bytes of all ids, then the middle and the high
ones. An id of a vocabulary of 128,256 is 5 bytes of a pickle that compress to 3; in planes it takes 17 bits, less where
texts repeat each other.
"""

_LARGEST = 2**24


def laid_out(args):
    """(args with each list of ids replaced by its place among all ids, the planes of all ids): plain values."""
    ids = []
    return _without_ids(args, ids), [bytes(i >> shift & 255 for i in ids) for shift in (0, 8, 16)]


def put_back(planes):
    """The ids of three planes. Travels."""
    return [low | middle << 8 | high << 16 for low, middle, high in zip(*planes, strict=True)]


def with_ids(args, ids):
    """What `laid_out` got, from what it returned. Travels."""
    if isinstance(args, slice):
        return ids[args]
    if type(args) in (list, tuple):
        return type(args)(with_ids(value, ids) for value in args)
    return args


def _without_ids(value, ids):
    if isinstance(value, list) and value and all(type(i) is int and 0 <= i < _LARGEST for i in value):
        ids.extend(value)
        return slice(len(ids) - len(value), len(ids))
    if type(value) in (list, tuple):
        return type(value)(_without_ids(entry, ids) for entry in value)
    return value
