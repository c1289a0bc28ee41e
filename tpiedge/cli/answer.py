"""A running answer: events of the cluster become text, which ends at stop strings and is timed as the user sees it."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tpiedge.model.detokenizer import Detokenizer
from tpiedge.model.stops import StopMatcher
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.nodes.cluster import LocalCluster
from tpiedge.wire.control import Finished, PromptScores, Token
from tpiedge.wire.requests import GenerationRequest

__all__ = ["Answer", "collect"]


@dataclass
class Answer:
    """What came back, and when: `ttft_s` to the first token, `decode_s` from there to the last."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    ttft_s: float = 0.0
    decode_s: float = 0.0
    logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)

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
) -> Answer:
    """Run the request; `show` gets the text piece by piece, never half a character nor part of a stop string."""
    answer = Answer()
    writer = _TextWriter(tokenizer, tuple(stops), answer, show)
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
                    if writer.push(token):
                        answer.finish_reason = "stop"
                        return answer
                case Finished(reason=reason):
                    answer.finish_reason = reason
    finally:
        events.close()  # cancels what still runs
    if writer.finish():
        answer.finish_reason = "stop"
    return answer


class _TextWriter:
    """Tokens to text to the screen, up to a stop string."""

    def __init__(
        self, tokenizer: Tokenizer | None, stops: tuple[str, ...], answer: Answer, show: Callable[[str], None]
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer) if tokenizer else None
        self._matcher = StopMatcher(stops)
        self._answer = answer
        self._show = show

    def push(self, token: int) -> bool:
        """Whether a stop string is complete."""
        if self._detokenizer is None:
            return False
        text, stopped = self._matcher.feed(self._detokenizer.push(token))
        self._write(text)
        return stopped

    def finish(self) -> bool:
        """Show what was held back; whether a stop string was complete in it."""
        if self._detokenizer is None:
            return False
        text, stopped = self._matcher.feed(self._detokenizer.finish())
        self._write(text if stopped else text + self._matcher.finish())
        return stopped

    def _write(self, text: str) -> None:
        if text:
            self._answer.text += text
            self._show(text)
