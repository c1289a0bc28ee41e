"""Compare a chat with a cluster, token for token, with transformers in f32 on the same dequantised weights.

    .venv/bin/python -m tools.check_chat FILE.gguf [--template FILE] [--workers 1] [--compute f32] [--tokens 24]

A master and workers on loopback serve the pack of FILE, which keeps its types. transformers renders the same messages
with `tpiedge unpack`'s checkpoint. With --compute f32, prompts and greedy answers must be equal: else exit status 1.
Answers do not end before --tokens. Shapes: T positions, G generated tokens, V vocabulary. Linux.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.process.command import COMMAND
from tests.process.serving.serving import Serving
from tpiedge.local.prepare import prepare

_TEMPLATE = Path(__file__).parents[1] / "configs" / "templates" / "gemma.jinja"
_SPEED = 1.5e9  # bytes per second, as every machine says of its memory
_LIMIT_S = 1800.0
_SYSTEM = "You are a friendly librarian who lives in a village by the sea. You answer in plain sentences."
_QUESTIONS = (
    "The capital of France is",
    "Tell me a story about a lost key.",
    "Write four lines about rain: 雨, дождь, pluie.",
)


class Found(NamedTuple):
    """Numbers of equal prompts and tokens. `furthest`, `least`: distances of log probabilities, in nats."""

    prompts: int
    tokens: int
    furthest: float
    least: float


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.check_chat",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--template", type=Path, default=_TEMPLATE, help="[default: Gemma's kind]")
    parser.add_argument("--workers", type=int, default=1, help="beside the master [default: 1]")
    parser.add_argument("--compute", choices=("f32", "int8"), default="f32", help="[default: f32]")
    parser.add_argument("--tokens", type=int, default=24, help="of each answer [default: 24]")
    options = parser.parse_args()
    os.environ["TPIEDGE_CONFIG"] = os.devnull
    with tempfile.TemporaryDirectory(prefix="tpiedge-chat-") as place:
        pack, plain = Path(place) / "pack", Path(place) / "plain"
        for words in (
            ("import-gguf", options.file, "--out", pack, "--chat-template", options.template),
            ("unpack", pack, plain),
        ):
            subprocess.run([COMMAND, *map(str, words)], check=True, timeout=_LIMIT_S, stdout=sys.stderr)
        found = _compared(plain, pack, list(_answers(Path(place), pack, options)))
    turns, tokens = len(_QUESTIONS), len(_QUESTIONS) * options.tokens
    print(f"equal: {found.prompts} of {turns} prompts, {found.tokens} of {tokens} tokens")
    print(f"largest difference of a token's log probability: {found.furthest:.2g}")
    print(f"least distance of the likeliest token from the next one: {found.least:.2g}")
    return int(options.compute == "f32" and (found.prompts, found.tokens) != (turns, tokens))


def _answers(folder: Path, pack: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields messages, token_ids and their logprobs of each turn. Prints the texts."""
    flags = ("--compute", options.compute, "--context", 1024, "--min-workers", options.workers)
    serving = Serving(folder / "cluster", *flags, model=str(pack), cache=folder / "cache", bytes_per_s=_SPEED)
    with closing(serving), httpx.Client(base_url=serving.url, timeout=_LIMIT_S, trust_env=False) as client:
        serving.start_master()
        for number in range(options.workers):
            serving.start_worker(f"worker-{number}", bytes_per_s=_SPEED)
        serving.wait_ready(1 + options.workers, _LIMIT_S)
        body = {"model": "pack", "max_tokens": options.tokens, "temperature": 0, "ignore_eos": True}
        body |= {"logprobs": True, "return_token_ids": True}
        messages = [{"role": "system", "content": _SYSTEM}]
        for question in _QUESTIONS:
            messages.append({"role": "user", "content": question})
            answer = client.post("/v1/chat/completions", json=body | {"messages": messages})
            (choice,) = answer.raise_for_status().json()["choices"]
            text, scores = choice["message"]["content"], choice["logprobs"]["content"]
            print(f"{question}\n  {text!r}", flush=True)
            yield {
                "messages": [*messages],
                "token_ids": choice["token_ids"],
                "logprobs": [one["logprob"] for one in scores],
            }
            messages.append({"role": "assistant", "content": text})


def _compared(plain: Path, pack: Path, answers: Sequence[Mapping[str, Any]]) -> Found:
    """Compares with the likeliest token of transformers after each prompt and each token of an answer."""
    own = prepare(str(pack), None, None, None)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(plain)
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32, attn_implementation="eager")
    prompts, equal, furthest, least = 0, 0, 0.0, math.inf
    for answer in answers:
        text = tokenizer.apply_chat_template(answer["messages"], add_generation_prompt=True, tokenize=False)
        ids = tokenizer.encode(text, add_special_tokens=False)
        prompts += tuple(ids) == own.message_ids(answer["messages"])
        tokens_G = torch.tensor(answer["token_ids"])
        with torch.inference_mode():
            logits_TV = model(torch.tensor([[*ids, *answer["token_ids"]]])).logits[0]
        logs_GV = logits_TV[len(ids) - 1 : -1].double().log_softmax(-1)
        best = logs_GV.topk(2, dim=-1)
        equal += int((best.indices[:, 0] == tokens_G).sum())
        logs_G = logs_GV.gather(1, tokens_G[:, None])[:, 0]
        furthest = max(furthest, float((logs_G - torch.tensor(answer["logprobs"])).abs().max()))
        least = min(least, float((best.values[:, 0] - best.values[:, 1]).min()))
    return Found(prompts, equal, furthest, least)


if __name__ == "__main__":
    sys.exit(main())
