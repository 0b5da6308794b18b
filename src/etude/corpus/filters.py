"""What does not belong into a model: generated code, data in disguise, secrets, text that is not Python.

Invariant: `reason_to_drop` is a pure function of text and limit, and never runs the code it looks at.
"""

import ast
import math
import re
import warnings
from collections import Counter

from etude.corpus.document import DropReason

_HEADER_LINES = 10
_GENERATED = re.compile(
    r"\bauto-?\s?generated\b|\bgenerated\s+(?:automatically|by|from|with)\b|@generated\b|\bdo\s+not\s+(?:edit|modify)\b",
    re.IGNORECASE,
)
_KEYS = re.compile(
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"  # AWS access key ids
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    r"|\bgh[pousr]_[A-Za-z0-9]{36}|\bgithub_pat_[A-Za-z0-9_]{22}"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10}|hooks\.slack\.com/services/T\w+/B\w+/\w+"
)
# name = "value", name: str = "value", {"name": "value"}, f(name="value"). No space, so prose passes; no `:`, `<`, `|`,
# so addresses and special tokens do; and a tokenizer is no token. Without, 4 of 5,000 installed files were caught.
_ASSIGNMENT = re.compile(
    r"(?:password|passwd|pwd|secret|token(?!iz)|api_?key|access_?key|private_?key|auth_?key)\w{0,30}[\"'\]]{0,2}\s{0,4}"
    r"(?::\s{0,4}[\w.]{1,30}\s{0,4}=|[:=])\s{0,4}[rbuf]{0,2}[\"']([^\"'\s:<>|]{16,200})[\"']",
    re.IGNORECASE,
)
# Bits per character: 16 random base64 characters have 3.6 to 4.0, a dotted or hyphenated name of that length below 3.5.
_SECRET_ENTROPY = 3.5


def reason_to_drop(text: str, max_line_length: int) -> DropReason | None:
    """Why a document's text is not wanted; None when it is. The cheap questions come first."""
    lines = text.split("\n")
    if _is_generated(lines[:_HEADER_LINES]):
        return DropReason.GENERATED
    if max(map(len, lines)) > max_line_length:
        return DropReason.LONG_LINE
    if holds_secret(text):
        return DropReason.SECRET
    return None if _is_python(text) else DropReason.NOT_PYTHON


def holds_secret(text: str) -> bool:
    """Whether text holds a known kind of key, or a random-looking literal given to a name such as `password`."""
    if _KEYS.search(text):
        return True
    return any(_looks_random(match[1]) for match in _ASSIGNMENT.finditer(text))


def _looks_random(value: str) -> bool:
    """Many different characters, digits and letters among them, as names and words seldom have."""
    if not (re.search(r"\d", value) and re.search(r"[A-Za-z]", value)):
        return False
    counts = Counter(value).values()
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts) >= _SECRET_ENTROPY


def _is_generated(header: list[str]) -> bool:
    """Only comments and the line that opens a docstring count: prose further down may well speak of generated code."""
    return any(line.startswith(("#", '"', "'", 'r"')) and _GENERATED.search(line) for line in header)


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are the author's business
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deeply for the parser
        return False
    return True
