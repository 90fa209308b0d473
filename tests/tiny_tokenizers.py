"""Small byte-level tokenizers with known token counts.

Byte-level, because transformers rebuilds the tokenizer of a Qwen2 checkpoint that way whatever its tokenizer.json says.
Not called tokenizers.py: as a script's neighbour that name would hide the library of the same name.
"""

import string

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]
SPACE, NEWLINE = "Ġ", "Ċ"  # as byte-level vocabularies spell them
CHARACTERS = [*string.ascii_letters, *string.digits, *string.punctuation, SPACE, NEWLINE]
MERGES = [(SPACE, "2"), ("2", "8"), ("t", "h"), ("th", "e"), (SPACE, "the"), ("1", "7")]
VOCABULARY = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS, *("".join(pair) for pair in MERGES)])}
VOCABULARY_SIZE = 112


def _byte_level(merges, bos):
    core = Tokenizer(models.BPE(VOCABULARY, merges, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    if bos:
        names["bos_token"] = "<bos>"
        core.post_processor = processors.TemplateProcessing(
            single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", VOCABULARY["<bos>"])]
        )
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **names)


def char_tokenizer(bos=True):
    """One token a character (printable ASCII and newline), after a <bos> token if `bos`."""
    return _byte_level([], bos)


def merging_tokenizer(bos=False):
    """Characters with six merges: "28" alone is one token, but " 28" is two, " 2" and "8"."""
    return _byte_level(MERGES, bos)
