"""Small tokenizers with known token counts.

Not called tokenizers.py: as a script's neighbour that name would hide the library of the same name.
"""

import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]
CHARACTERS = [*string.ascii_letters, *string.digits, *string.punctuation, " ", "\n"]
MERGES = [(" ", "2"), ("2", "8"), ("t", "h"), ("th", "e"), (" ", "the"), ("1", "7")]
VOCABULARY = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS, *("".join(pair) for pair in MERGES)])}
VOCABULARY_SIZE = 112


def _finished(core, bos):
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", VOCABULARY["<bos>"])]
        )
    core.decoder = decoders.Fuse()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"} | ({"bos_token": "<bos>"} if bos else {})
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **names)


def char_tokenizer(bos=True):
    """One token a character, after a <bos> token if `bos`."""
    core = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    return _finished(core, bos)


def merging_tokenizer(bos=False):
    """Characters with six merges: "28" alone is one token, but " 28" is two, " 2" and "8"."""
    core = Tokenizer(models.BPE(VOCABULARY, MERGES, unk_token="<unk>"))
    return _finished(core, bos)
