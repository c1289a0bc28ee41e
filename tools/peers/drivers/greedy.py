"""Greedy decoding with any model that transformers drives, timed token by token. Prints one JSON object."""

import json
import time
from collections.abc import Callable
from typing import Any

import torch


@torch.no_grad()
def decode(model: Callable[..., Any], prompt: list[int], tokens: int) -> None:
    """Feed `prompt`, which is not timed, then time `tokens` further steps of one token each."""
    out = model(input_ids=torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
    ids, seconds = [], []
    for _ in range(tokens):
        token = out.logits[0, -1].argmax()
        ids.append(token.item())
        started = time.perf_counter()
        out = model(input_ids=token.view(1, 1), past_key_values=out.past_key_values, use_cache=True)
        out.logits[0, -1].argmax().item()
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"s_per_token": sum(seconds) / len(seconds), "seconds": seconds, "token_ids": ids}))
