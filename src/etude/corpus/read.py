"""Source trees to documents.

Invariant: which files are read, and in which order, depends on their paths below the roots and on the seed, never on
the order of a directory or on where a tree is mounted.
"""

import os
import re
import stat
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from etude.config.corpus import CorpusConfig
from etude.corpus.document import Document, DropReason
from etude.records import UserError

_WILD = re.compile(r"[*?]")


@dataclass(frozen=True)
class SourceFile:
    """A file that a glob found: where it is, and its path below the glob's root, with slashes."""

    path: str
    name: str


def find_files(globs: Sequence[str], exclude: Sequence[str], seed: int) -> list[SourceFile]:
    """All files of the globs but the excluded ones, each once, in the order of a hash of (seed, name).

    Raises UserError for a root that is not a folder, an unknown placeholder, or globs that find nothing at all.
    """
    found: dict[str, SourceFile] = {}
    unwanted = re.compile("|".join(f"(?:{_exclusion(pattern)})" for pattern in exclude) or r"(?!)")
    for pattern in globs:
        root, rest = _split_pattern(pattern)
        if not root.is_dir():
            raise UserError(f"{root}: no such folder; the corpus glob {pattern!r} names it (set corpus.globs)")
        wanted = re.compile(_translate(rest))
        for file in _walk(os.path.realpath(root), "", unwanted):
            if wanted.fullmatch(file.name):
                found.setdefault(file.path, file)
    if not found:
        raise UserError(f"corpus.globs {list(globs)}: no file matches that corpus.exclude lets pass")
    return sorted(found.values(), key=lambda file: (_key(seed, file.name), file.path))


def read_files(files: Sequence[SourceFile], config: CorpusConfig) -> Iterator[tuple[Document | DropReason, int]]:
    """Read files in order until the budget is used up; each gives a document or the reason why not, and the bytes that
    it took from the budget. Ends before the first file that the budget has no room for."""
    left = config.max_bytes
    for file in files[: config.max_files]:
        data = _read(file.path, config.max_file_bytes)
        size = 0 if isinstance(data, DropReason) else len(data)
        if size > left:
            return
        left -= size
        yield data if isinstance(data, DropReason) else _to_document(file.name, data, config), size


def _split_pattern(pattern: str) -> tuple[Path, str]:
    """(root, what is matched below it). The root ends before the first wildcard, or before the file's own name."""
    parts = pattern.split("/")
    wild = next((index for index, part in enumerate(parts) if _WILD.search(part)), len(parts) - 1)
    paths = sysconfig.get_paths()
    known = {"{stdlib}": paths["stdlib"], "{site}": paths["purelib"]}
    unknown = [part for part in parts if part.startswith("{") and part.endswith("}") and part not in known]
    if unknown:
        raise UserError(f"corpus glob {pattern!r}: unknown placeholder {unknown[0]}; there are {', '.join(known)}")
    root = "/".join(known.get(part, part) for part in parts[:wild])
    return Path(root or ("/" if pattern.startswith("/") else ".")).expanduser(), "/".join(parts[wild:])


def _translate(pattern: str) -> str:
    """A glob as a regular expression: `*` and `?` stay within one part of a path, `**` is any number of folders."""
    *folders, last = pattern.split("/")
    head = "".join("(?:[^/]+/)*" if part == "**" else _translate_part(part) + "/" for part in folders)
    return head + (".+" if last == "**" else _translate_part(last))


def _translate_part(part: str) -> str:
    return "".join({"*": "[^/]*", "?": "[^/]"}.get(character, re.escape(character)) for character in part)


def _exclusion(pattern: str) -> str:
    """Without a slash a pattern is looked for in every part of a path. What it names is left out with all below it."""
    return ("" if "/" in pattern else "(?:.*/)?") + _translate(pattern) + "(?:/.*)?"


def _walk(root: str, folder: str, unwanted: re.Pattern[str]) -> Iterator[SourceFile]:
    """Files below root, with unwanted and hidden folders not entered (the standard library may hold gigabytes of
    site-packages), linked folders neither: they may be loops. Folders that cannot be read are passed over."""
    try:
        entries = list(os.scandir(os.path.join(root, folder)))
    except OSError:
        return
    for entry in entries:
        name = folder + entry.name
        if unwanted.fullmatch(name):
            continue
        if entry.is_symlink():
            if not os.path.isdir(entry.path):  # a linked file counts as the file that it links to
                yield SourceFile(os.path.realpath(entry.path), name)
        elif not entry.is_dir():
            yield SourceFile(entry.path, name)
        elif not entry.name.startswith("."):
            yield from _walk(root, f"{name}/", unwanted)


def _key(seed: int, name: str) -> bytes:
    return blake3(f"file/{seed}/{name}".encode("utf-8", "surrogateescape")).digest()


def _read(path: str, limit: int) -> bytes | DropReason:
    """Its bytes. A file beyond the limit is not read, and neither is a pipe or a device, which might never end."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return DropReason.UNREADABLE
        if status.st_size > limit:
            return DropReason.TOO_LARGE
        return Path(path).read_bytes()
    except OSError:
        return DropReason.UNREADABLE


def _to_document(name: str, data: bytes, config: CorpusConfig) -> Document | DropReason:
    if len(data) < config.min_file_bytes:
        return DropReason.TOO_SMALL
    if b"\0" in data:
        return DropReason.BINARY
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return DropReason.NOT_UTF8
    if not text.strip():
        return DropReason.TOO_SMALL
    return Document(name, text.replace("\r\n", "\n").replace("\r", "\n"))
