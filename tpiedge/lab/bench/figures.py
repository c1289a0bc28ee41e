"""What the benchmarks have in common: a request that can be repeated, and how figures of several runs are told."""

import statistics
from collections.abc import Iterator, Sequence

from tpiedge.clock import Clock
from tpiedge.errors import UserError
from tpiedge.local.answer import Answer, collect
from tpiedge.local.cluster import LocalCluster
from tpiedge.local.prepare import PreparedModel
from tpiedge.wire.requests import GenerationRequest


def check_lengths(model: PreparedModel, prompt_tokens: int, tokens: int) -> None:
    """Raises UserError for what the model or `ask` cannot do."""
    if prompt_tokens + tokens > model.context_tokens:
        raise UserError(f"--prompt-tokens and --tokens exceed the model's {model.context_tokens} positions")
    if model.config.rope.depends_on_length:
        raise UserError("models with dynamic RoPE cannot keep a prompt, which this benchmark relies on")


def check_names(flag: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raises UserError for the first that is not known."""
    for item in given:
        if item not in known:
            raise UserError(f"{flag}: {item!r} is none of {', '.join(known)}")


def integers(flag: str, text: str, low: int, high: int) -> list[int]:
    """The numbers of "2,4". Raises UserError for what is no such list, or out of range."""
    try:
        values = [int(item) for item in text.split(",")]
    except ValueError:
        raise UserError(f"{flag} {text!r} is not a list of numbers like 2,4") from None
    if any(not low <= value <= high for value in values):
        raise UserError(f"{flag} {text!r} is out of range: {low} to {high}")
    return values


def ask(
    cluster: LocalCluster, model: PreparedModel, prompt_tokens: int, tokens: int, *, keep: bool
) -> Answer:
    """Greedy, after `prompt_ids`; end tokens ignored. `keep`: continue the prompt of the request before,
    one token in every step."""
    ids = prompt_ids(prompt_tokens, model.config.vocab_size)
    request = GenerationRequest(f"bench-{tokens}-{keep}", ids, tokens, ignore_eos=True, keep_prefix=keep)
    return collect(cluster, request, None, (), lambda _text: None)


def prompt_ids(count: int, vocab_size: int) -> tuple[int, ...]:
    """Fixed token ids that look random."""
    return tuple((7919 * index + 13) % vocab_size for index in range(count))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum of at least one value."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def milliseconds(found: dict[str, float], digits: int = 1) -> str:
    """A spread of seconds, for people."""
    median, low, high = (1e3 * found[name] for name in ("median", "min", "max"))
    return f"{median:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


class Repeats:
    """The repeats of `cases` cases, `least` to `most` of each, which are to end within `seconds` from now on.

    Each case may take an even part of the time that is left then, so what one does not take is the others'. `least`
    counts more than the time.
    """

    def __init__(self, cases: int, seconds: float, clock: Clock, *, least: int, most: int) -> None:
        self._cases = cases
        self._end = clock.now() + seconds
        self._clock = clock
        self._least = least
        self._most = most

    def of_next_case(self) -> Iterator[int]:
        """Yields the number of each repeat of the next case, once the one before it is done.

        Beyond `least` a repeat comes only if it ends in time where it takes as long as those before it on average.
        """
        started = self._clock.now()
        allowed_s = (self._end - started) / max(1, self._cases)
        self._cases -= 1
        for done in range(self._most):
            spent_s = self._clock.now() - started
            if done >= self._least and spent_s * (done + 1) / done > allowed_s:
                return
            yield done
