"""How far trainer and sampler are apart on the same weights: the number that says whether replay works."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from etude.models import RouterTap, next_token_logprobs
from etude.records import Rollout
from etude.rl.batch import micro_batches
from etude.rl.loss import k3


@torch.no_grad()
def mismatch(
    model: PreTrainedModel, rollouts: Sequence[Rollout], temperature: float, micro_tokens: int = 6144
) -> dict[str, float]:
    """Mean k3 over all sampled tokens with replayed and with live routes, and the share of routes that differ.

    `model` must hold the weights that sampled; the rollouts' logprobs must be of `temperature`.
    """
    tap = RouterTap(model)
    replayed, live = [], []
    differing, routed = 0, 0
    for batch in micro_batches(rollouts, {r.rollout_id: 0.0 for r in rollouts}, micro_tokens):
        inputs = (batch.ids_BT, batch.doc_BT, batch.sampled_BT, temperature, batch.trunk_B)
        with tap.replay(batch.routes_BTLK.flatten(0, 1)):
            logprobs_N, _ = next_token_logprobs(model, *inputs)
        replayed.append(k3(logprobs_N, batch.sampler_logprobs_N))
        with tap.record() as routes:
            logprobs_N, _ = next_token_logprobs(model, *inputs)
        live.append(k3(logprobs_N, batch.sampler_logprobs_N))
        if not routes:  # a dense model
            continue
        own_NLK = torch.stack(routes, 1).sort(-1).values
        their_NLK = batch.routes_BTLK.flatten(0, 1).long().sort(-1).values
        known_NL = (their_NLK >= 0).all(-1)
        differing += int(((own_NLK != their_NLK).any(-1) & known_NL).sum())
        routed += int(known_NL.sum())
    return {
        "k3_replay": float(torch.cat(replayed).mean()),
        "k3_live": float(torch.cat(live).mean()),
        "routes_differ": differing / max(1, routed),
        "tokens": sum(len(part) for part in live),
    }
