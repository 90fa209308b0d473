"""Whether texts begin with the BOS token, as the checkpoint says."""

from transformers import PreTrainedTokenizerBase

from ..params import warn


def begins_with_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer puts BOS before a text."""
    return tokenizer.bos_token_id is not None and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]


def follow(tokenizer: PreTrainedTokenizerBase, adds_bos: bool | None, name: str) -> None:
    """Make the tokenizer add BOS, or not, as its checkpoint says; warn if it did otherwise.

    Versions of transformers read `add_bos_token` differently. adds_bos: None if the checkpoint does not say.
    """
    if adds_bos is None or adds_bos == begins_with_bos(tokenizer) or tokenizer.bos_token_id is None:
        return
    tokenizer.add_bos_token = adds_bos
    followed = begins_with_bos(tokenizer) == adds_bos
    then = "the checkpoint is followed" if followed else "this tokenizer cannot be changed: correct its tokenizer.json"
    warn(
        f"{name}: this version of transformers {'left out' if adds_bos else 'added'} the BOS token, contrary to "
        f"the checkpoint (add_bos_token: {adds_bos}); {then}"
    )
