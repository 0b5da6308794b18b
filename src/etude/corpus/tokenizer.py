r"""Byte-level BPE that never makes a special token out of text.

Invariants: `decode(encode_text(text)) == text` for every string of Unicode scalar values, and `encode_text` never gives
the id of a special token, whatever the text says.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import msgspec
from blake3 import blake3
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from etude.records import UserError, write_atomic

SPECIAL_TOKENS = (
    "<|pad|>", "<|eod|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|summarize|>",
    "<|summary|>", "<|end|>", "<|view|>", "<|edit|>", "<|run|>", "<|finish|>", "<|arg|>", "<|fim_prefix|>",
    "<|fim_middle|>", "<|fim_suffix|>",
)  # fmt: skip
"""Ids 0 to 16, in this order. Appending one changes every other id; the digest tells such tokenizers apart."""

_FILE, _CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"

# Merges stay within these. One leading space goes with what follows it, so ` return` and ` +` can be single tokens.
_PIECES = (
    r"\r?\n[ \t]*",  # a line end with the indent after it
    r" ?[\p{L}\p{M}_]+",  # a word; BPE finds the parts of snake_case
    r" ?\p{N}",  # digits one at a time: a small model learns 10 of them, not 1000 numbers
    r" ?[^\s\p{L}\p{M}\p{N}_]+",  # a run of operators and brackets
    r"\s+?(?= ?\S|\r?\n|\z)",  # white space, without the space that belongs to the next piece
)


class Tokenizer:
    """A trained tokenizer. Immutable; equal digests encode alike."""

    def __init__(self, backend: Backend) -> None:
        """Raises ValueError when one of SPECIAL_TOKENS has not its id in the backend, or is not marked special."""
        marked = {added.content: token for token, added in backend.get_added_tokens_decoder().items() if added.special}
        wrong = [name for index, name in enumerate(SPECIAL_TOKENS) if marked.get(name) != index]
        if wrong:
            raise ValueError(f"{wrong[0]} is not a special token with the id {SPECIAL_TOKENS.index(wrong[0])}")
        backend.encode_special_tokens = True  # as ordinary text, that is; the setting is not part of the saved file
        self._backend = backend

    @staticmethod
    def train(texts: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Learn merges until there are `vocab_size` tokens, or no pair of tokens is left to merge."""
        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex("|".join(_PIECES)), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),  # all 256 bytes: nothing is ever unknown
            show_progress=False,
        )
        backend.train_from_iterator(texts, trainer)
        return Tokenizer(backend)

    @staticmethod
    def load(folder: str | Path) -> "Tokenizer":
        """Read what `save` wrote. Raises UserError for a missing or broken folder, or another project's tokenizer."""
        path = Path(folder) / _FILE
        try:
            return Tokenizer(Backend.from_str(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise UserError(f"{path}: no such tokenizer; `etude corpus build` makes one") from None
        except Exception as error:  # the library raises bare Exception for any file it cannot read
            raise UserError(f"{path}: not a tokenizer of this project: {error}; run `etude corpus build`") from None

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json, and tokenizer_config.json so that `transformers` loads the folder too."""
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": "<|pad|>",
            "eos_token": "<|eod|>",
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": True,  # the guard against injected markers, in the words of transformers
        }
        write_atomic(Path(folder) / _FILE, self._json)
        write_atomic(Path(folder) / _CONFIG_FILE, msgspec.json.format(msgspec.json.encode(config)))

    @cached_property
    def vocab_size(self) -> int:
        """Number of ids, special tokens and bytes included; ids are 0 to vocab_size - 1."""
        return int(self._backend.get_vocab_size())

    @cached_property
    def digest(self) -> str:
        """BLAKE3 in hex of everything that decides how text is encoded."""
        return blake3(self._json.encode("utf-8")).hexdigest()

    def special(self, name: str) -> int:
        """The id of one of SPECIAL_TOKENS. Raises ValueError for another name."""
        if name not in SPECIAL_TOKENS:
            raise ValueError(f"{name!r} is no special token; there are {', '.join(SPECIAL_TOKENS)}")
        return SPECIAL_TOKENS.index(name)

    def encode_text(self, text: str) -> list[int]:
        """Ids of `text`, never one of a special token. Raises ValueError for a lone surrogate, which is no text."""
        try:
            return self._backend.encode(text, add_special_tokens=False).ids
        except TypeError:  # what the library says to any string that has no UTF-8 form
            raise ValueError(f"not Unicode text (a lone surrogate?): {text[:40]!a}") from None

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode_text` of each, on all cores."""
        return [one.ids for one in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Iterable[int], show_special: bool = True) -> str:
        """The text of `ids`; special tokens by name, or left out. Bytes that are not UTF-8 become U+FFFD.

        Raises ValueError for an id outside the vocabulary.
        """
        ids = [int(token) for token in ids]
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise ValueError(f"token ids {min(ids)} to {max(ids)} are not all in a vocabulary of {self.vocab_size}")
        return self._backend.decode(ids, skip_special_tokens=not show_special)

    @cached_property
    def _json(self) -> str:
        return self._backend.to_str()
