"""Build, load and save MoE models; expert routes and their replay; weights as bits; the optimizer."""

from etude.models.bits import weights_of
from etude.models.build import DType, build_model, cast_model, load_model, save_model, torch_dtype, use_threads
from etude.models.forward import PADDING, next_token_logprobs, packed_inputs
from etude.models.optimizer import MasterAdamW
from etude.models.routing import RouterTap, balance_experts, combine_weights

__all__ = [
    "PADDING",
    "DType",
    "MasterAdamW",
    "RouterTap",
    "balance_experts",
    "build_model",
    "cast_model",
    "combine_weights",
    "load_model",
    "next_token_logprobs",
    "packed_inputs",
    "save_model",
    "torch_dtype",
    "use_threads",
    "weights_of",
]
