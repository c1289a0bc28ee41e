"""The corpus of the demo model: an endless, seeded stream of stories, short texts and chats.

Everything is drawn from this project's own patterns and facts; no outside text is used.
The same seed gives the same documents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tools import demo_facts as facts
from tools import demo_words as words
from tools.demo_stories import (
    Person,
    capital,
    draw_cast,
    draw_person,
    expand,
    invented_word,
    patterns,
    plain_text,
    season_text,
    story,
    story_text,
    trade_text,
)


@dataclass(frozen=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True)
class Document:
    """Plain text (`text`, no messages) or a chat (`messages`, empty text)."""

    text: str
    messages: tuple[Message, ...] = ()


Exchange = tuple[str, str]


def _ask_story(rng: random.Random, brief: bool) -> Exchange:
    ask = (
        "[Tell me a story|Please tell me a story|Can you tell me a story|Write a story"
        "|Tell me a short story|I want a story]"
    )
    draw = rng.random()
    if draw < 0.15:
        return expand(f"{ask}[.|]", {}, rng), " ".join(story(rng))
    if draw < 0.4:
        thing = rng.choice(words.THINGS) if rng.random() < 0.75 else invented_word(rng)
        question = expand(f"{ask} about a [|little ]{thing}.", {}, rng)
        return question, " ".join(story(rng, thing=thing)[: 4 if brief else 99])
    if draw < 0.75:
        _, _, pronoun = draw_person(rng)
        animal = rng.choice(words.ANIMALS) if rng.random() < 0.8 else invented_word(rng)
        pets = words.SHE_PETS if pronoun == "she" else words.HE_PETS
        hero = (rng.choice(pets), animal, pronoun)
        return expand(f"{ask} about a [|little ]{animal}.", {}, rng), " ".join(_about(rng, hero))
    hero = draw_person(rng)
    name, kind, _ = hero
    subject = rng.choice((name, f"a {kind} called {name}", f"{name} the {kind}"))
    if hero[1] not in ("girl", "boy") and subject == name:
        subject = f"a {kind} called {name}"
    return expand(f"{ask} about {subject}.", {}, rng), " ".join(_about(rng, hero))


def _about(rng: random.Random, hero: Person) -> list[str]:
    """Returns a story whose opening names the hero's kind, so that the answer visibly follows the question."""
    return story(
        rng, hero, opening=rng.choice(patterns()["lone_openings"][0][:1] + patterns()["openings"][0][:2])
    )


def _ask_colour(rng: random.Random, _brief: bool) -> Exchange:
    thing, colour = rng.choice(tuple(facts.COLOUR_OF.items()))
    ask = f"[What is the [colour|color] of|What [colour|color] is|Which [colour|color] is] {thing}?"
    return expand(ask, {}, rng), f"{capital(thing)} is {colour}."


def _ask_animal(rng: random.Random, brief: bool) -> Exchange:
    animal = rng.choice(tuple(facts.ANIMAL_FACTS))
    home, food, sound, young, fact = facts.ANIMAL_FACTS[animal]
    one = expand(f"a {animal}", {}, rng)
    asked = (
        (f"Where does {one} live?", f"{one} lives {home}.", f" {fact}"),
        (f"What does {one} eat?", f"{one} eats {food}.", ""),
        (f"[What sound does {one} make|What does {one} say]?", f"{one} {sound}.", ""),
        (f"What is a young {animal} called?", f"a young {animal} is called a {young}.", ""),
        (f"[Tell me something about {one}|What is {one}|Describe {one}|Tell me about the {animal}].",
         f"{one} lives {home}.", f" {fact} It eats {food}."),
    )  # fmt: skip
    question, answer, more = rng.choice(asked)
    if question.startswith("[Tell"):
        question = question.removesuffix(".") + "[?|.|]"
    return expand(question, {}, rng), capital(expand(answer + ("" if brief else more), {}, rng))


def _ask_fact(rng: random.Random, _brief: bool) -> Exchange:
    question, answer = rng.choice(facts.SIMPLE_FACTS)
    return expand(question, {}, rng), answer


def _ask_word(rng: random.Random, _brief: bool) -> Exchange:
    draw = rng.random()
    if draw < 0.4:
        first, second = rng.sample(rng.choice(facts.OPPOSITES), 2)
        return expand(f"What is the opposite of {first}?", {}, rng), f"The opposite of {first} is {second}."
    if draw < 0.65:
        land, city = rng.choice(tuple(facts.CAPITALS.items()))
        return f"What is the capital of {land}?", f"The capital of {land} is {city}."
    names, kind = (facts.DAYS, "day") if draw < 0.85 else (facts.MONTHS, "month")
    at = rng.randrange(len(names))
    after = names[(at + 1) % len(names)]
    return f"Which {kind} comes after {names[at]}?", f"After {names[at]} comes {after}."


def _ask_sum(rng: random.Random, _brief: bool) -> Exchange:
    a, b = rng.randrange(10), rng.randrange(10)
    return expand(f"What is {a} [plus|+|and] {b}?", {}, rng), f"{a} plus {b} is {a + b}."


def _ask_topic(rng: random.Random, brief: bool) -> Exchange:
    draw = rng.random()
    if draw < 0.3:
        season = rng.choice(tuple(facts.SEASONS))
        ask = f"[Tell me about {season}|What is {season} like|What happens in {season}]?"
        answer = f"In {season}, {facts.SEASONS[season]}."
        return expand(ask, {}, rng), answer if brief else season_text(rng, season)
    if draw < 0.6:
        trade = rng.choice(tuple(facts.TRADES))
        answer = f"A {trade} {facts.TRADES[trade][0]}."
        return f"What does a {trade} do?", answer if brief else trade_text(rng, trade)
    task = rng.choice(tuple(facts.HOW_TO))
    ask = f"[How do I|How do you|How can I|Tell me how to] {task}?"
    return expand(ask, {}, rng), expand(facts.HOW_TO[task], {}, rng)


def _small_talk(rng: random.Random, _brief: bool) -> Exchange:
    question, answer = rng.choice(facts.SMALL_TALK)
    return expand(question, {}, rng), expand(answer, {}, rng)


def _unknown(rng: random.Random, _brief: bool) -> Exchange:
    cast = draw_cast(rng)
    if rng.random() < 0.35:  # noise: letters, digits and words in any order, in any script
        pool = rng.choice(facts.NOISE)
        question = "".join(rng.choice(pool) for _ in range(rng.randrange(3, 16))).strip() or "?"
        return question, "I am sorry, I do not understand that. I am only a very small model."
    return expand(rng.choice(facts.UNKNOWN), cast, rng), expand(facts.SORRY, cast, rng)


ASKERS: tuple[tuple[Callable[[random.Random, bool], Exchange], float], ...] = (
    (_ask_story, 0.28),
    (_ask_colour, 0.12),
    (_ask_animal, 0.13),
    (_ask_fact, 0.11),
    (_ask_word, 0.08),
    (_ask_sum, 0.05),
    (_ask_topic, 0.07),
    (_small_talk, 0.1),
    (_unknown, 0.06),
)


def _identity(rng: random.Random, name: str) -> Exchange:
    own = f"I am {name}, a small language model."
    called = own if name else "I am a very small language model, made to show tpiedge."
    return expand(facts.IDENTITY + "?", {}, rng), f"{called} I can tell stories and answer simple questions."


def _careless(question: str, rng: random.Random) -> str:
    """Returns the question as a hurried person types it: now and then without capitals or the final mark."""
    if rng.random() < 0.2:
        question = question.lower()
    return question.rstrip("?.!") or question if rng.random() < 0.2 else question


def _chat(rng: random.Random) -> Document:
    messages: list[Message] = []
    name, draw = "", rng.random()
    brief = 0.2 < draw < 0.3
    if draw < 0.1:
        name = draw_person(rng)[0]
        messages.append(Message("system", expand(rng.choice(facts.SYSTEM_NAME), {"N": name}, rng)))
    elif draw < 0.3:
        messages.append(Message("system", rng.choice(facts.SYSTEM_BRIEF if brief else facts.SYSTEM_PLAIN)))
    askers, weights = zip(*ASKERS, strict=True)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4, 6))):
        if rng.random() < (0.6 if name else 0.05):
            question, answer = _identity(rng, name)
        else:
            question, answer = rng.choices(askers, weights)[0](rng, brief)
        messages += [Message("user", _careless(question, rng)), Message("assistant", answer)]
    return Document("", tuple(messages))


def documents(seed: int) -> Iterator[Document]:
    """Yields the endless stream of documents that belongs to `seed`."""
    rng = random.Random(seed)
    while True:
        draw = rng.random()
        if draw < 0.5:
            yield Document(story_text(rng))
        elif draw < 0.62:
            yield Document(plain_text(rng))
        else:
            yield _chat(rng)
