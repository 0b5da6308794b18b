"""Source trees to clean, deduplicated, tokenised and packed token shards. Imports neither torch nor ray."""

from etude.corpus.build import build_corpus
from etude.corpus.document import DropReason, Split
from etude.corpus.pack import NO_DOCUMENT, PackedTokens
from etude.corpus.report import CorpusReport, SplitCounts
from etude.corpus.shards import load_shards, read_manifest
from etude.corpus.tokenizer import SPECIAL_TOKENS, Tokenizer

__all__ = [
    "NO_DOCUMENT",
    "SPECIAL_TOKENS",
    "CorpusReport",
    "DropReason",
    "PackedTokens",
    "Split",
    "SplitCounts",
    "Tokenizer",
    "build_corpus",
    "load_shards",
    "read_manifest",
]
