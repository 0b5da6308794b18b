"""Lossless weight deltas from one trainer to engines, proven by a digest of the bits. Never imports torch."""

from etude.weights.chain import BlobRef, Chain, Kind, Manifest
from etude.weights.delta import (
    StagedTensor,
    commit,
    decode_full,
    diff_weights,
    encode_delta,
    encode_full,
    stage_delta,
    stage_full,
    undo,
)
from etude.weights.digest import Digest, digest_change, elements_digest, state_digest, tensor_digest
from etude.weights.publisher import Publisher, PublishReport
from etude.weights.replica import Replica, Staged, Verify
from etude.weights.store import HeadEntry, Store
from etude.weights.tensors import (
    TensorBits,
    TensorMeta,
    Weights,
    WeightsError,
    check_same_table,
    copy_weights,
    table_hash,
    total_bytes,
    total_elements,
)

__all__ = [
    "BlobRef",
    "Chain",
    "Digest",
    "HeadEntry",
    "Kind",
    "Manifest",
    "PublishReport",
    "Publisher",
    "Replica",
    "Staged",
    "StagedTensor",
    "Store",
    "TensorBits",
    "TensorMeta",
    "Verify",
    "Weights",
    "WeightsError",
    "check_same_table",
    "commit",
    "copy_weights",
    "decode_full",
    "diff_weights",
    "digest_change",
    "elements_digest",
    "encode_delta",
    "encode_full",
    "stage_delta",
    "stage_full",
    "state_digest",
    "table_hash",
    "tensor_digest",
    "total_bytes",
    "total_elements",
    "undo",
]
