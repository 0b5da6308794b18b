"""Which experts each token used, and how to use the same ones again.

Invariant: replay fixes the *set* of experts and nothing else. Weights are recomputed from the live router's own full
scores, so gradient reaches the router for exactly the experts that produced the token. A missing row (-1) falls back to
the live choice; how many rows were there at all is the trainer's `coverage`.

Formulas (L MoE layers, E experts, K of them a token; z router logits, c the routed scaling factor):
    sigmoid router   p = sigmoid(z);  w_i = c * p_i / (sum_{j in S} p_j + 1e-20)
    softmax router   p = softmax(z);  w_i = p_i / sum_{j in S} p_j   (or p_i when the model does not renormalise)
Source: "routing replay from rollout" (R3), arXiv 2510.11370, section 3; DeepSeek-V3, arXiv 2412.19437, eq. 13 to 16.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from etude.records import MISSING_ROUTE

RouterOutput = tuple[Tensor, Tensor, Tensor]  # logits [N, E], weights [N, K], experts [N, K]


class RouterTap:
    """Access to every router of a model. `record` and `replay` are contexts around forward passes; outside them the
    model is untouched. Nested, replay first, the record is what was replayed.

    n_layers, n_experts, top_k: L, E and K. Layers are counted over MoE layers only, in order of depth.
    """

    def __init__(self, model: nn.Module) -> None:
        self.routers = [module for name, module in model.named_modules() if name.endswith("mlp.gate")]
        self.n_layers = len(self.routers)
        self.top_k: int = self.routers[0].top_k if self.routers else 0  # type: ignore[assignment]
        self.n_experts: int = len(self.routers[0].weight) if self.routers else 0  # type: ignore[arg-type]

    @contextlib.contextmanager
    def record(self) -> Iterator[list[Tensor]]:
        """Collect the experts used by one pass: one [N, K] int64 tensor per MoE layer, N tokens of the pass."""
        recorded: list[Tensor] = []

        def keep(_layer: int, _router: nn.Module, output: RouterOutput) -> RouterOutput:
            recorded.append(output[2])
            return output

        with self._hooked(keep):
            yield recorded

    @contextlib.contextmanager
    def replay(self, routes_NLK: Tensor) -> Iterator[None]:
        """Use these experts. `routes_NLK`: integers, N = batch * sequence of the pass; -1 = live.

        Raises ValueError when the layers, experts per token or (inside the pass) the number of tokens differ, for an
        expert that does not exist, and for one that a row names twice.
        """
        if routes_NLK.shape[1:] != (self.n_layers, self.top_k):
            raise ValueError(
                f"replay: routes have [layers, experts] {list(routes_NLK.shape[1:])}, "
                f"the model has [{self.n_layers}, {self.top_k}]"
            )
        self._check_ids(routes_NLK)

        def override(layer: int, router: nn.Module, output: RouterOutput) -> RouterOutput:
            logits_NE, weights_NK, live_NK = output
            if len(routes_NLK) != len(live_NK):
                raise ValueError(f"replay: {len(routes_NLK)} rows of routes for {len(live_NK)} tokens")
            wanted_NK = routes_NLK[:, layer].long()
            missing_N1 = (wanted_NK == MISSING_ROUTE).any(-1, keepdim=True)
            used_NK = torch.where(missing_N1, live_NK, wanted_NK)
            return logits_NE, combine_weights(router, logits_NE, used_NK).to(weights_NK.dtype), used_NK

        with self._hooked(override):
            yield

    def _check_ids(self, routes_NLK: Tensor) -> None:
        if not routes_NLK.numel():
            return
        least, most = int(routes_NLK.min()), int(routes_NLK.max())
        if least < MISSING_ROUTE or most >= self.n_experts:  # an unsigned type on the way turns -1 into 255
            raise ValueError(f"replay: expert ids from {least} to {most}, the model has 0 to {self.n_experts - 1}")
        sorted_NLK = routes_NLK.sort(-1).values
        twice_NL = ((sorted_NLK[..., 1:] == sorted_NLK[..., :-1]) & (sorted_NLK[..., 1:] != MISSING_ROUTE)).any(-1)
        if twice_NL.any():  # a missing row that was filled with zeros looks like this
            raise ValueError(f"replay: {int(twice_NL.sum())} of {twice_NL.numel()} rows name an expert twice")

    @contextlib.contextmanager
    def _hooked(self, hook: Callable[[int, nn.Module, RouterOutput], RouterOutput]) -> Iterator[None]:
        handles = [
            router.register_forward_hook(lambda module, _inputs, output, layer=layer: hook(layer, module, output))
            for layer, router in enumerate(self.routers)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def combine_weights(router: nn.Module, logits_NE: Tensor, chosen_NK: Tensor) -> Tensor:
    """Weights of the chosen experts from the router's full, unbiased scores, in fp32; see the module docstring."""
    if hasattr(router, "e_score_correction_bias"):
        weights_NK = logits_NE.float().sigmoid().gather(1, chosen_NK)
        if router.norm_topk_prob:
            weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + 1e-20)
        return weights_NK * float(router.routed_scaling_factor)  # type: ignore[arg-type]
    weights_NK = logits_NE.float().softmax(-1).gather(1, chosen_NK)
    return weights_NK / weights_NK.sum(-1, keepdim=True) if router.norm_topk_prob else weights_NK


@torch.no_grad()
def balance_experts(routers: list[nn.Module], routes_NLK: Tensor, rate: float) -> None:
    """Nudge the correction bias towards equal load: +rate for experts below the mean, -rate above (arXiv 2408.15664).

    routes_NLK: experts used by N tokens. Only for pretraining: in RL the bias stays frozen, because under replay the
    load is the sampler's. Routers without a correction bias are left alone.
    """
    for layer, router in enumerate(routers):
        if isinstance(bias := getattr(router, "e_score_correction_bias", None), Tensor):
            load_E = torch.bincount(routes_NLK[:, layer].flatten(), minlength=len(bias)).float()
            bias += rate * torch.sign(load_E.mean() - load_E)
