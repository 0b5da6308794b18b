"""Small source trees for tests."""

import random
from pathlib import Path

from etude.config.corpus import CorpusConfig
from etude.corpus.document import Split, split_of

_WORDS = (
    "total",
    "index",
    "value",
    "first",
    "second",
    "result",
    "count",
    "left",
    "right",
    "size",
    "name",
    "entry",
    "width",
)


def source(seed: int, functions: int = 6) -> str:
    """Valid Python of about 100 bytes a function; different seeds share few runs of five tokens."""
    rng = random.Random(seed)
    lines = []
    for number in range(functions):
        names = [f"{rng.choice(_WORDS)}_{rng.choice(_WORDS)}_{rng.randrange(1000)}" for _ in range(4)]
        lines += [
            f"def {names[0]}_{number}({names[1]}, {names[2]}):",
            f"    {names[3]} = {names[1]} {rng.choice('+-*')} {rng.randrange(10**6)}",
            f"    return {names[3]} {rng.choice('+-*')} {names[2]}\n\n",
        ]
    return "\n".join(lines)


def package_of(split: Split, share: float, number: int = 0) -> str:
    """The name of the `number`-th package that a share sends to a split."""
    names = (f"package{index}" for index in range(10_000))
    return [name for name in names if split_of(name, share) is split][number]


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    """Files below root, by path."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def small_tree(root: Path, packages: int = 30, files: int = 2) -> Path:
    """Thirty packages, some of them held out at any reasonable share."""
    return write(root, {f"package{p}/module{f}.py": source(100 * p + f) for p in range(packages) for f in range(files)})


def config_of(tree: Path, **fields: object) -> CorpusConfig:
    """A quick config that reads one tree."""
    quick = {"vocab_size": 512, "sequence_length": 64, "held_out_share": 0.2}
    return CorpusConfig(globs=(f"{tree}/**/*.py",), **(quick | fields))
