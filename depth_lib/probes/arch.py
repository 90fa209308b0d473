"""What probes know of a model's architecture."""

from __future__ import annotations


class Arch:
    """The architecture of one model: found when it is loaded, verified on the model that runs, sent with each request.

    A plain class, which travels to servers by value, with its types as text, as not all of them travel. Values do not
    change; `but` makes another record.
    """

    n_layers: int  # L blocks
    width: int  # d, features of a token's residual
    streams: tuple  # the shape of a token's residual: (d,), or (n, d') of n streams
    n_other_outputs: int | None  # what blocks return in a tuple beside the residual; None: they return it alone
    parts: tuple | None  # of each block {"attention": a, "mlp": m}, lists of (path, scale, bias); None: unknown
    parallel: bool  # the MLP reads h_l, as attention does
    rescales: bool  # blocks multiply h + a + m by one number each
    in_place: tuple  # paths in blocks of modules whose outputs the block changes once they are there
    tail: tuple  # the common names of the modules that make logits of h_L: final norm, if any, to unembedding
    logit_scale: float
    logit_softcap: float | None
    can_skip_blocks: bool  # a pass may begin at any block: blocks read nothing but the residual from earlier ones
    can_add_rows: bool  # the batch may grow between blocks
    may_truncate: bool  # tokens are computed alike in a sequence that ends earlier: not where rotary frequencies vary
    remembers: bool  # rotary frequencies stay those of the longest sequence so far
    head_dtype: object = None  # torch dtype of the unembedding, where residuals may have another; None: not known here
    asks: tuple = ()  # names of outputs that the config asks for, which fit no changed batch: they are asked not
    fetched: dict | None = None  # of a model in another process: what was read of its unembedding; None: call it

    def __init__(self, **values):
        self.__dict__.update(values)

    def but(self, **changes):
        """The record with other values."""
        return type(self)(**{**self.__dict__, **changes})
