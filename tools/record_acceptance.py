"""Record answers of a small real model, as patterns of repeats that benchmarks of speculation replay.

    .venv/bin/python -m tools.record_acceptance MODEL [--out tools/traces]

MODEL is that of `tools/fetch_model.py`. Two greedy answers: "rewrite" copies a text of 145 words, with "painter"
forced for "keeper", which so small a model forgets; "story" has a repetition penalty and copies nothing. A trace is
JSON with token ids of prompt and answer, renumbered by first occurrence, as drafts depend on equality alone. Printed:
tokens that the prompt lookup guesses.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.cluster import InProcessCluster
from tpiedge.engine.drafting import PromptLookup
from tpiedge.engine.sampler import Sampled, Sampler
from tpiedge.errors import TpiedgeError
from tpiedge.local.prepare import PreparedModel, prepare
from tpiedge.planner.needs import LayerShape
from tpiedge.planner.solve import ShareWeight, partition
from tpiedge.wire.control import Token
from tpiedge.wire.requests import GenerationRequest, Sampling

TEXT = """\
The old lighthouse stands on a narrow rock at the mouth of the bay. Every evening, when the sun goes down, the keeper \
climbs one hundred and twelve steps to light the lamp. From the top he can see the fishing boats come home, one after \
another, and the small red roofs of the village behind the harbour. In winter the waves are so high that nobody can \
reach the rock for weeks. Then the keeper bakes his own bread, mends his nets and writes letters that he cannot send. \
He says that he is never lonely, because the gulls visit him and the wind tells him the news. When spring comes, the \
first boat brings him flour, oil for the lamp and a bag full of letters from his friends. He reads them slowly, one \
each day, so that they last until the summer."""

OLD, NEW = " keeper", " painter"
CONTEXT = 1024
MOST = 15


@dataclass(frozen=True)
class Task:
    """A request. `replaced`: the text of a token, and of the token given in its place."""

    name: str
    message: str
    tokens: int
    sampling: Sampling
    replaced: tuple[str, str] | None = None


TASKS = (
    Task(
        "rewrite",
        f'Replace the word "{OLD.strip()}" with "{NEW.strip()}" in this text and write the whole text again, word for '
        f"word:\n\n{TEXT}",
        300,
        Sampling(),
        replaced=(OLD, NEW),
    ),
    Task(
        "story",
        "Tell me a long story about two friends who build a boat and sail around an island.",
        170,
        Sampling(repetition_penalty=1.1),
    ),
)


class Replacing:
    """Draws as `sampler` does, but gives other tokens in place of the `replaced` tokens."""

    def __init__(self, sampler: Sampler, replaced: dict[int, int]) -> None:
        self._sampler = sampler
        self._replaced = replaced
        self.accept = sampler.accept

    def sample(self, logits_V: Any, allowed: Any = None) -> Sampled:
        """Returns the token, without log probabilities."""
        token = self._sampler.sample(logits_V, allowed).token
        return Sampled(self._replaced.get(token, token), ())


def main() -> int:
    """Returns the exit code of the error if the model cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="file or name of a model with a chat template")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "traces")
    parser.add_argument("--cache", type=Path, help="folder for the pack [default: the user's]")
    parser.add_argument("--show", action="store_true", help="print the answers")
    arguments = parser.parse_args()
    try:
        model = prepare(arguments.model, None, None, arguments.cache)
        arguments.out.mkdir(parents=True, exist_ok=True)
        for task in TASKS:
            prompt, answer = record(model, task)
            steps, accepted, drafted = guessed(prompt, answer)
            print(
                f"{task.name}: {len(prompt)} + {len(answer)} tokens; {steps} steps of up to {MOST} drafted tokens, "
                f"{accepted} of {drafted} come true"
            )
            if arguments.show:
                print(model.tokenizer.decode(answer))
            path = arguments.out / f"{task.name}.json"
            path.write_text(json.dumps(trace(model.name, task, prompt, answer)) + "\n", encoding="utf-8")
    except TpiedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def record(model: PreparedModel, task: Task) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids of the prompt and of the answer, up to an end token."""
    prompt = model.message_ids([{"role": "user", "content": task.message}])
    pairs = [task.replaced] if task.replaced else []
    replaced = {_token(model, old): _token(model, new) for old, new in pairs}
    request = GenerationRequest(task.name, prompt, task.tokens, task.sampling, stop_ids=model.config.eos_ids)

    def sampler_of(request: GenerationRequest) -> Replacing:
        sampler = Sampler(request.sampling, request.prompt_ids, model.config.vocab_size)
        return Replacing(sampler, replaced)

    config = model.config
    tiles = -(-config.intermediate_size // 128)
    shape = LayerShape(config.num_heads, config.num_kv_heads, tiles, config.num_layers)
    shares = partition(shape, [ShareWeight(1, 1)])
    with InProcessCluster(model.pack.path, shares, capacity_tokens=CONTEXT, sampler_of=sampler_of) as cluster:
        answer = tuple(event.token for event in cluster.generate(request) if isinstance(event, Token))
    return prompt, answer[:-1] if answer[-1:] and answer[-1] in request.stop_ids else answer


def guessed(prompt: Sequence[int], answer: Sequence[int]) -> tuple[int, int, int]:
    """Returns (steps, tokens that come true, tokens drafted) if every guess is drafted."""
    lookup = PromptLookup(prompt)
    steps = accepted = drafted = done = 0
    while done < len(answer):
        guess = lookup.draft(MOST).ids
        rest = answer[done:]
        right = 0
        while right < min(len(guess), len(rest)) and guess[right] == rest[right]:
            right += 1
        for token in rest[: right + 1]:
            lookup.append(token)
        done += right + 1
        steps, accepted, drafted = steps + 1, accepted + right, drafted + len(guess)
    return steps, accepted, drafted


def trace(model: str, task: Task, prompt: Sequence[int], answer: Sequence[int]) -> dict[str, object]:
    numbers: dict[int, int] = {}
    ids = [numbers.setdefault(token, len(numbers)) for token in (*prompt, *answer)]
    return {
        "model": Path(model).stem,
        "task": task.name,
        "prompt_ids": ids[: len(prompt)],
        "answer_ids": ids[len(prompt) :],
    }


def _token(model: PreparedModel, text: str) -> int:
    (token,) = model.tokenizer.encode(text, add_special=False)
    return int(token)


if __name__ == "__main__":
    sys.exit(main())
