"""Which weights: a step for people, a digest for proof."""

import msgspec


class PolicyVersion(msgspec.Struct, frozen=True, order=True):
    """One set of weights. `step` is the trainer's optimizer step; `digest` is computed from the weights themselves.

    The digest is the additive state digest of `etude.weights.digest` as 32 hex digits, so two versions are equal only
    if their bits are. Never built from a label: whoever holds weights computes it.
    """

    step: int
    digest: str

    def __str__(self) -> str:
        return f"{self.step}@{self.digest[:8]}"


class VersionSpan(msgspec.Struct, frozen=True):
    """Tokens `[start, end)` of one segment were sampled by `version`."""

    start: int
    end: int
    version: PolicyVersion
