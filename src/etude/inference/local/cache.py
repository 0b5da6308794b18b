"""Keys and values of many sessions in fixed slots, behind the cache interface of `transformers` modules.

Invariant: position p of slot s holds what the pass that consumed token p of that session computed. A pass writes its
own rows before reading, so a row is read only after it was written; rows past a session's length are masked out.

Shape legend: B rows of a pass, Q new tokens a row, S slots, C context, H heads (1 for latent attention), D width.
"""

import torch
from torch import Tensor


class SlotCache:
    """Passed as `past_key_values`. Buffers are made at the first pass, when the model's own shapes are known."""

    def __init__(self, slots: int, context: int) -> None:
        self.slots, self.context = slots, context
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._slots_B: Tensor
        self._positions_BQ: Tensor
        self._length = 0

    def aim(self, slots_B: Tensor, positions_BQ: Tensor) -> None:
        """The next pass writes row b at `positions_BQ[b]` of slot `slots_B[b]` and reads positions [0, max + 1)."""
        self._slots_B, self._positions_BQ = slots_B, positions_BQ
        self._length = int(positions_BQ.max()) + 1

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: object) -> tuple[Tensor, Tensor]:
        """Store [B, H, Q, D] of one layer and return [B, H, length, D] of the aimed slots."""
        if layer_idx == len(self._layers):
            self._layers.append((self._buffer(keys), self._buffer(values)))
        read = []
        for buffer, new in zip(self._layers[layer_idx], (keys, values), strict=True):
            buffer[self._slots_B[:, None], self._positions_BQ] = new.transpose(1, 2)
            read.append(buffer[self._slots_B, : self._length].transpose(1, 2))
        return read[0], read[1]

    def copy(self, source: int, target: int, length: int) -> None:
        """Give slot `target` the first `length` rows of slot `source`."""
        for layer in self._layers:
            for buffer in layer:
                buffer[target, :length] = buffer[source, :length]

    def _buffer(self, like: Tensor) -> Tensor:
        return torch.zeros(self.slots, self.context, like.shape[1], like.shape[3], dtype=like.dtype)
