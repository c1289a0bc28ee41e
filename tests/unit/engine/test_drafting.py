"""How many guessed tokens a step takes: in simulated time, with steps of known costs and answers of known repeats."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpiedge.engine.drafting import DraftLength, allot
from tpiedge.engine.prompt_lookup import Guess, PromptLookup
from tpiedge.engine.step_cost import StepCost

Curve = Callable[[int], float]

#: Seconds of a step by its rows.
CURVES: dict[str, Curve] = {
    "streamed": lambda rows: 0.5 + 0.0005 * rows,
    "linked": lambda rows: 0.25 + 0.012 * rows,
    "in memory": lambda rows: 0.056 + 0.014 * rows,
    "tiles": lambda rows: 0.07 * max(1.0, rows / 6),
    "steep": lambda rows: 0.07 * rows,
}
MOST = 15


@dataclass
class Stream:
    """A sequence whose answer is known. `guess` gives what is guessed after so many of its tokens."""

    prompt: Sequence[int]
    answer: Sequence[int]
    guess: Callable[["Stream"], Guess] | None = None
    done: int = 0
    drafting: DraftLength = field(default_factory=DraftLength)

    def __post_init__(self) -> None:
        self.lookup = PromptLookup(self.prompt)

    def guessed(self) -> Guess:
        return self.guess(self) if self.guess else self.lookup.draft(MOST)

    def step(self, guess: Guess, drafted: int) -> None:
        """As the engine does it: the drafts that are right, and one token more."""
        rest = self.answer[self.done :]
        right = 0
        while right < min(drafted, len(rest)) and guess.ids[right] == rest[right]:
            right += 1
        tokens = rest[: right + 1]
        self.drafting.learn(guess, tokens)
        for token in tokens:
            self.lookup.append(token)
        self.done += len(tokens)


@dataclass
class Run:
    """What a simulated engine took for all its streams."""

    seconds: float = 0.0
    steps: int = 0
    drafted: int = 0
    counts: list[int] = field(default_factory=list)
    #: Of every token of all streams, when it was there, summed.
    waited_s: float = 0.0


def run(streams: Iterable[Stream], curve: Curve, *, noise: float = 0.0, cost: StepCost | None = None) -> Run:
    """All streams from their first token to their last. `noise`: of the seconds, at random, always more."""
    known = StepCost() if cost is None else cost
    draw = random.Random(1)
    found = Run()
    waiting = list(streams)
    known.measured(len(waiting[0].prompt), curve(len(waiting[0].prompt)))
    while running := [stream for stream in waiting if stream.done < len(stream.answer)]:
        guesses = [stream.guessed() for stream in running]
        bids = [(stream.drafting, guess) for stream, guess in zip(running, guesses, strict=True)]
        counts = allot(bids, len(running), known, MOST * len(running))
        rows = len(running) + sum(counts)
        seconds = curve(rows) * (1 + noise * abs(draw.gauss(0, 1)))
        known.measured(rows, seconds)
        found.seconds += seconds
        for stream, guess, count in zip(running, guesses, counts, strict=True):
            done = stream.done
            stream.step(guess, count)
            found.waited_s += found.seconds * (stream.done - done)
        found.steps += 1
        found.drafted += sum(counts)
        found.counts.append(sum(counts))
    return found


def without(streams: Iterable[Stream], curve: Curve) -> float:
    """Seconds of a run that drafts nothing."""
    lengths = [len(stream.answer) for stream in streams]
    return sum(curve(sum(length > step for length in lengths)) for step in range(max(lengths)))


def with_fixed(stream: Stream, curve: Curve, drafted: int) -> float:
    """Seconds of a run that drafts this many of each guess."""
    seconds = 0.0
    while stream.done < len(stream.answer):
        guess = stream.guessed()
        count = min(drafted, len(guess.ids))
        seconds += curve(1 + count)
        stream.step(guess, count)
    return seconds


def text(tokens: int, seed: int = 1) -> list[int]:
    """Tokens as frequent as words are."""
    draw = random.Random(seed)
    return [min(int(draw.paretovariate(0.7)), 30_000) for _ in range(tokens)]


def edited(original: Sequence[int], every: int) -> list[int]:
    """One token in `every` is another one, at random."""
    draw = random.Random(every)
    return [40_000 + i if draw.random() < 1 / every else token for i, token in enumerate(original)]


def wrong(stream: Stream) -> Guess:
    """Looks like a long match, and never is one."""
    return Guess((50_000,) * MOST, 40)


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("every", [1000, 40, 12])
def test_a_copied_text_is_nearly_as_fast_as_with_the_best_number(every: int, name: str, noise: float) -> None:
    """The best fixed number, which depends on the text and on what steps take, and is not known before."""
    prompt, curve = text(300), CURVES[name]
    answer = edited(prompt, every)
    best = min(with_fixed(Stream(prompt, answer), curve, drafted) for drafted in range(MOST + 1))
    found = run([Stream(prompt, answer)], curve, noise=noise)
    # Noise adds 8 %; a tenth is learnt with.
    assert found.seconds <= best * (1 + noise) * 1.12 + 2 * curve(1)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("tokens", [60, 2000])
def test_guesses_that_are_never_right_cost_next_to_nothing(name: str, tokens: int) -> None:
    curve = CURVES[name]
    stream = Stream(text(300), text(tokens, seed=2), wrong)
    plain_s = without([stream], curve)
    assert run([stream], curve).seconds <= 1.02 * plain_s + 0.6 * curve(1)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("seed", range(4))
def test_other_text_is_not_slower(name: str, seed: int) -> None:
    """Short repeats that mean little."""
    curve = CURVES[name]
    stream = Stream(text(300, seed), text(300, seed + 100))
    plain_s = without([stream], curve)
    assert run([stream], curve).seconds <= 1.03 * plain_s


@pytest.mark.parametrize("name", CURVES)
def test_the_number_follows_what_repeats_and_what_does_not(name: str) -> None:
    curve, prompt = CURVES[name], text(400)
    answer = [*prompt[:100], *text(100, seed=5), *prompt[100:200], *text(100, seed=6), *prompt[200:]]
    stream = Stream(prompt, answer)
    plain_s = without([stream], curve)
    found = run([stream], curve)
    copied = with_fixed(Stream(prompt, prompt), curve, MOST)
    if name != "steep":
        assert found.seconds <= copied + 1.1 * 200 * curve(1)
    assert found.seconds <= 1.02 * plain_s


def test_of_streamed_weights_long_drafts_are_taken_at_once() -> None:
    prompt = text(300)
    found = run([Stream(prompt, prompt)], CURVES["streamed"])
    assert found.steps <= 300 / 16 + 6


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("others", [3, 15])
def test_one_that_copies_among_others(name: str, others: int) -> None:
    curve, prompt = CURVES[name], text(200)

    def streams() -> list[Stream]:
        rest = [Stream(text(200, seed), text(200, seed + 50)) for seed in range(10, 10 + others)]
        return [Stream(prompt, prompt), *rest]

    found, step_s = run(streams(), curve), curve(1 + others)
    assert found.waited_s <= 1.02 * sum(range(1, 201)) * (1 + others) * step_s, "of all tokens together"
    assert found.seconds <= 1.1 * 200 * step_s, "of those that do not copy"


@pytest.mark.parametrize("name", ["streamed", "linked", "in memory"])
def test_all_that_copy_gain_together(name: str) -> None:
    curve = CURVES[name]

    def streams() -> list[Stream]:
        return [Stream(text(200, seed), text(200, seed)) for seed in range(4)]

    assert run(streams(), curve).seconds <= without(streams(), curve) / 1.6


def test_a_first_step_that_took_long_is_not_believed_for_ever() -> None:
    """The only step of its size: from a cold disk."""
    curve, cost, prompt = CURVES["streamed"], StepCost(), text(12)
    cost.measured(12, 6.0)
    answer = prompt * 20
    found = run([Stream(prompt, answer)], curve, cost=cost)
    assert found.steps <= len(answer) / 16 + 10


def test_costs_that_change_are_followed() -> None:
    """What was learnt while rows cost next to nothing holds no more, and then holds again."""
    cost, prompt = StepCost(), text(200)
    for name in ("streamed", "steep", "streamed"):
        stream = Stream(prompt, prompt * 2)
        plain_s = without([stream], CURVES[name])
        found = run([stream], CURVES[name], cost=cost)
        assert found.seconds <= (1.1 * plain_s if name == "steep" else plain_s / 8)


def test_nothing_is_drafted_before_a_step_was_measured() -> None:
    guess = Guess((1, 2, 3), 20)
    assert allot([(DraftLength(), guess)], 1, StepCost(), MOST) == [0]


def test_the_likeliest_tokens_of_all_guesses_are_drafted() -> None:
    cost = StepCost()
    for rows in (2, 4, 8):
        for _ in range(3):
            cost.measured(rows, 1.0)
    bids = [(DraftLength(), Guess((1, 2, 3), 2)), (DraftLength(), Guess((1, 2, 3, 4), 40))]
    assert allot(bids, 2, cost, 4) == [0, 4]
    assert allot(bids, 2, cost, 5) == [1, 4]
    assert allot(bids, 2, cost, 0) == [0, 0]


def test_it_is_learnt_from_guesses_that_were_not_drafted() -> None:
    drafting, guess = DraftLength(), Guess((1, 2), 3)
    before = list(drafting.chances(guess))
    drafting.learn(guess, [7])
    assert next(iter(drafting.chances(guess))) < before[0]
    for _ in range(3):
        drafting.learn(guess, [1])
    assert next(iter(drafting.chances(guess))) > before[0]


@given(
    right=st.lists(st.booleans(), min_size=1, max_size=80),
    name=st.sampled_from(sorted(CURVES)),
    length=st.integers(1, MOST),
    matched=st.integers(0, 50),
)
@settings(max_examples=60)
def test_what_is_lost_is_bounded_at_every_moment(
    right: list[bool], name: str, length: int, matched: int
) -> None:
    """Whenever guesses turn wrong: each token's guess is right or wrong as it is drawn here, again and again."""
    curve = CURVES[name]
    answer = list(range(1, 401))

    def guess(stream: Stream) -> Guess:
        places = range(stream.done, stream.done + length)
        good = (right[place % len(right)] for place in places)
        return Guess(tuple(place + 1 if one else 0 for place, one in zip(places, good, strict=True)), matched)

    stream = Stream(text(50), answer, guess)
    cost = StepCost()
    for rows in (1, 2, 4, 8, 16):
        for _ in range(3):
            cost.measured(rows, curve(rows))
    seconds = 0.0
    while stream.done < len(answer):
        guessed = stream.guessed()
        (count,) = allot([(stream.drafting, guessed)], 1, cost, MOST)
        assert count <= len(guessed.ids)
        seconds += curve(1 + count)
        stream.step(guessed, count)
        # Interpolated costs are not quite those of the curve.
        assert seconds <= 1.03 * stream.done * curve(1) + 0.7 * curve(1)
