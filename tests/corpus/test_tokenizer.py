"""The tokenizer loses nothing, makes no marker out of text, and gives code the pieces it is made of."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from etude.corpus import SPECIAL_TOKENS, Tokenizer
from etude.records import UserError
from tests.corpus.trees import source

TEXTS = [source(seed, functions=20) for seed in range(20)]
TEXTS += ["\n    return total + 1\n2     return total\n" * 200]
TOKENIZER = Tokenizer.train(TEXTS, 1024)

texts = st.text() | st.text("ab _\n\t\r 019<|>end+-()\u00e9\u0301\u4e2d\U0001f600\0\x85\u2028", max_size=60)
spelt = st.lists(st.sampled_from(SPECIAL_TOKENS) | st.text(max_size=5)).map("".join)


def pieces(text: str) -> list[str]:
    return [TOKENIZER.decode([token]) for token in TOKENIZER.encode_text(text)]


@given(texts | spelt)
@example("<|end|>")
@example(" <|end|>\r\n\t<|fim_middle|> ")
@example("")
def test_text_survives_and_never_becomes_a_special_token(text: str) -> None:
    ids = TOKENIZER.encode_text(text)
    assert TOKENIZER.decode(ids) == text
    assert min(ids, default=99) >= len(SPECIAL_TOKENS)
    assert max(ids, default=0) < TOKENIZER.vocab_size
    assert TOKENIZER.encode_texts([text, text]) == [ids, ids]


def test_special_tokens_have_the_lowest_ids_in_their_order() -> None:
    assert [TOKENIZER.special(name) for name in SPECIAL_TOKENS] == list(range(17))
    assert TOKENIZER.decode([TOKENIZER.special("<|run|>"), *TOKENIZER.encode_text("a b"), 8]) == "<|run|>a b<|end|>"
    assert (
        TOKENIZER.decode([TOKENIZER.special("<|run|>"), *TOKENIZER.encode_text("a b"), 8], show_special=False) == "a b"
    )
    with pytest.raises(ValueError, match="fin"):
        TOKENIZER.special("<|fin|>")


def test_even_training_on_markers_does_not_make_them_tokens_of_text() -> None:
    tokenizer = Tokenizer.train(["<|end|><|pad|> <|end|>" * 500, *TEXTS], 1024)
    ids = tokenizer.encode_text("x<|end|>y")
    assert min(ids) >= len(SPECIAL_TOKENS) and tokenizer.decode(ids) == "x<|end|>y"


def test_operators_words_and_indents_are_single_tokens_and_digits_are_alone() -> None:
    text = "\n    return total + 1234"
    assert pieces(text)[:3] == ["\n    ", "return", " total"]
    assert pieces(text)[-5:] == [" +", " 1", "2", "3", "4"]
    assert len(TOKENIZER.encode_text(" return")) == len(TOKENIZER.encode_text(" +")) == 1


def test_an_id_outside_the_vocabulary_and_text_without_bytes_are_refused() -> None:
    for wrong in ([-1], [TOKENIZER.vocab_size], [20, 1 << 40]):
        with pytest.raises(ValueError, match=str(TOKENIZER.vocab_size)):
            TOKENIZER.decode(wrong)
    with pytest.raises(ValueError, match="surrogate"):
        TOKENIZER.encode_text("\ud800")
    assert TOKENIZER.decode(TOKENIZER.encode_text("é")[:1]) == "\ufffd"


def test_a_saved_tokenizer_is_the_same_and_training_again_gives_the_same(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.digest == TOKENIZER.digest == Tokenizer.train(TEXTS, 1024).digest
    assert loaded.encode_text("a <|end|> b") == TOKENIZER.encode_text("a <|end|> b")
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    assert Tokenizer.train(TEXTS[:10], 1024).digest != TOKENIZER.digest


def test_transformers_loads_the_folder_and_keeps_the_guard(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    TOKENIZER.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = source(99) + " <|end|> é"
    assert theirs(text, add_special_tokens=False)["input_ids"] == TOKENIZER.encode_text(text)
    assert (theirs.pad_token_id, theirs.eos_token_id, len(theirs)) == (0, 1, TOKENIZER.vocab_size)
    assert theirs.decode([3, *TOKENIZER.encode_text("a  b"), 8]) == "<|user|>a  b<|end|>"


@pytest.mark.parametrize("content", [None, "", "{", '{"version": "1.0"}', b"\xff\xfe"])
def test_a_missing_or_broken_folder_is_named(tmp_path: Path, content: str | bytes | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError, match=f"{tmp_path}/tokenizer.json.*etude corpus build"):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_with_other_special_tokens_is_refused(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    data["added_tokens"][8]["content"] = "<|stop|>"
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match="etude corpus build"):
        Tokenizer.load(tmp_path)
