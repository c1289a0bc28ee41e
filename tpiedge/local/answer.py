"""A running answer: events of the cluster become text, which ends at stop strings and is timed as the user sees it."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tpiedge.local.cluster import LocalCluster
from tpiedge.model.text import TextWriter
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.control import Finished, PromptScores, Token
from tpiedge.wire.requests import GenerationRequest


@dataclass
class Answer:
    """A complete answer. `ttft_s` is the time to the first token, `decode_s` the time from there to the last.

    `tokens_per_step` is how many tokens a sweep over the model gave; None where a stop string ended the answer.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    ttft_s: float = 0.0
    decode_s: float = 0.0
    logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    tokens_per_step: float | None = None

    @property
    def s_per_token(self) -> float | None:
        """Seconds per token after the first; None with fewer than two tokens."""
        steps = len(self.token_ids) - 1
        return self.decode_s / steps if steps > 0 else None


def collect(
    cluster: LocalCluster,
    request: GenerationRequest,
    tokenizer: Tokenizer | None,
    stops: Iterable[str],
    show: Callable[[str], None],
    *,
    goes_on: bool = False,
) -> Answer:
    """Runs the request; blocks until it ends, and raises as LocalCluster.generate.

    `show` gets the text piece by piece, never half a character nor part of a stop string. `goes_on`: whether it is that
    of the prompt, continued.
    """
    answer = Answer()
    writer = TextWriter(tokenizer, tuple(stops), request.prompt_ids if goes_on else ())

    def write(piece: tuple[str, bool]) -> bool:
        text, stopped = piece
        if text:
            answer.text += text
            show(text)
        return stopped

    started = last = time.perf_counter()
    events = cluster.generate(request)
    try:
        for event in events:
            match event:
                case PromptScores(scores=scores):
                    answer.prompt_logprobs += scores
                case Token(token=token, logprobs=logprobs):
                    last = time.perf_counter()
                    if not answer.token_ids:
                        answer.ttft_s = last - started
                    answer.decode_s = last - started - answer.ttft_s
                    answer.token_ids.append(token)
                    answer.logprobs.append(list(logprobs))
                    if write(writer.push(token)):
                        answer.finish_reason = "stop"
                        return answer
                case Finished(reason=reason, tokens=tokens, steps=steps):
                    answer.finish_reason = reason
                    answer.tokens_per_step = tokens / steps if steps else None
    finally:
        events.close()  # cancels what still runs
    if write(writer.finish()):
        answer.finish_reason = "stop"
    return answer
