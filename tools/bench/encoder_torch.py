"""The layers of `encoder` in PyTorch, with the same weights and the same operations."""

from __future__ import annotations

import math
from typing import Any

import torch

from tools.bench.encoder import Size, initial


class Layer(torch.nn.Module):  # type: ignore[misc]
    """One layer; see `encoder.Layer`."""

    def __init__(self, size: Size, number: int) -> None:
        super().__init__()
        self.size = size
        self.weights = {name: torch.nn.Parameter(torch.from_numpy(v)) for name, v in initial(size, number).items()}
        for name, weight in self.weights.items():
            self.register_parameter(f"weight_{name}", weight)  # "keys" and "values" are names that PyTorch has taken

    def forward(self, x: Any) -> Any:
        x = self._norm("attended", x + self._attention(x))
        hidden = torch.nn.functional.gelu(self._dense("up", x), approximate="tanh")
        return self._norm("out", x + self._dense("down", hidden))

    def _attention(self, x: Any) -> Any:
        size = self.size
        each = size.width // size.heads
        queries, keys, values = (
            self._dense(name, x).reshape(-1, size.length, size.heads, each).transpose(1, 2)
            for name in ("queries", "keys", "values")
        )
        shares = torch.softmax(queries @ keys.transpose(2, 3) / math.sqrt(each), -1)
        return self._dense("mixed", (shares @ values).transpose(1, 2).reshape(-1, size.length, size.width))

    def _dense(self, name: str, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weights[name].t(), self.weights[f"{name}_bias"])

    def _norm(self, name: str, x: Any) -> Any:
        scale, shift = self.weights[f"{name}_scale"], self.weights[f"{name}_shift"]
        return torch.nn.functional.layer_norm(x, (self.size.width,), scale, shift, 1e-12)
