"""Stories and short texts of the demo model's corpus, drawn from the patterns in `demo_patterns.txt`."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from tools import demo_facts as facts
from tools import demo_words as words

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])(?!one |use|uni)")

Cast = Mapping[str, str]
Person = tuple[str, str, str]  # name, noun ("girl", "fox"), pronoun ("she" or "he")
Plot = tuple[tuple[str, ...], ...]  # beats of patterns


@cache
def patterns() -> Mapping[str, Plot]:
    """Returns the sections of `demo_patterns.txt` by name; the file's head explains its language."""
    text = Path(__file__).with_name("demo_patterns.txt").read_text(encoding="utf-8")
    sections: dict[str, Plot] = {}
    for section in text.split("\n== ")[1:]:
        name, _, body = section.partition("\n")
        beats = (beat.splitlines() for beat in body.strip().split("\n\n"))
        sections[name] = tuple(tuple("" if line == "-" else line for line in beat) for beat in beats)
    return sections


def expand(pattern: str, cast: Cast, rng: random.Random) -> str:
    """Draws every choice of `pattern`, fills in the cast and puts the right article before vowels."""
    while _CHOICE.search(pattern):
        pattern = _CHOICE.sub(lambda found: rng.choice(found.group(1).split("|")), pattern)
    text = _ARTICLE.sub(r"\1n ", pattern.format_map(cast))
    return re.sub(r" {2,}", " ", text).strip()


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def invented_word(rng: random.Random) -> str:
    """Returns a word that the model has not met, so that the model learns to copy words."""
    ends = ("n", "r", "l", "s", "t", "", "", "x", "saur", "ck")
    syllables = [
        rng.choice("bcdfgklmnprstvwz") + rng.choice("aeiou") for _ in range(rng.choice((1, 2, 2, 3)))
    ]
    return "".join(syllables) + rng.choice(ends)


def draw_person(rng: random.Random, exclude: str = "") -> Person:
    """Returns a child or an animal whose name is not `exclude`."""
    while True:
        she = rng.random() < 0.5
        names: tuple[str, ...]
        if rng.random() < 0.7:
            kind, names = ("girl", words.GIRLS) if she else ("boy", words.BOYS)
        else:
            kind, names = rng.choice(words.ANIMALS), words.SHE_PETS if she else words.HE_PETS
        name = rng.choice(names) if rng.random() < 0.95 else capital(invented_word(rng))
        if name != exclude:
            return name, kind, "she" if she else "he"


def _pronouns(pronoun: str, prefix: str = "") -> dict[str, str]:
    he, him, his = ("she", "her", "her") if pronoun == "she" else ("he", "him", "his")
    forms = {"he": he, "him": him, "his": his, "himself": him + "self"}
    forms |= {capital(key): capital(word) for key, word in forms.items()}
    return {prefix + key: word for key, word in forms.items()}


def draw_cast(rng: random.Random, hero: Person | None = None, thing: str | None = None) -> Cast:
    """Returns names, pronouns, places and things of one document, each for a slot of the pattern language."""
    name, kind, pronoun = hero or draw_person(rng)
    friend, friend_kind, friend_pronoun = draw_person(rng, exclude=name)
    elder = rng.choice(tuple(words.ELDERS))
    place, inside, home = rng.choice(words.PLACES)
    colour, item = rng.choice(words.COLOURS), rng.choice(words.OBJECTS)
    return {
        "N": name,
        "k": kind,
        "F": friend,
        "fk": friend_kind,
        "E": elder,
        "L": place,
        "I": inside,
        "In": capital(inside),
        "home": rng.choice(words.PLACES)[2] if rng.random() < 0.3 else home,
        "c": colour,
        "o": item,
        "O": f"{colour} {item}",
        "o2": rng.choice(("arms", "basket", "coat", "hat")),
        "D": rng.choice(words.FOODS),
        "J": rng.choice(words.ADJECTIVES),
        "m": rng.choice(("man", "woman")),
        "A": rng.choice(words.HELPERS),
        "X": thing or rng.choice(words.THINGS),
        "T": rng.choice(("morning", "afternoon", "evening", "day")),
        **_pronouns(pronoun),
        **_pronouns(friend_pronoun, "f_"),
        **_pronouns(words.ELDERS[elder], "e_"),
    }


def _tell(plot: Plot, cast: Cast, rng: random.Random) -> list[str]:
    """Returns the sentences of one telling, which keeps to one variant of the plot."""
    variants = sorted({pattern[0] for beat in plot for pattern in beat if pattern[1:2] == "~"})
    variant = rng.choice(variants) if variants else ""
    sentences = []
    for beat in plot:
        fitting = [p.removeprefix(f"{variant}~") for p in beat if p[1:2] != "~" or p[0] == variant]
        sentences.append(expand(rng.choice(fitting), cast, rng) if fitting else "")
    return [sentence for sentence in sentences if sentence]


def story(
    rng: random.Random, hero: Person | None = None, thing: str | None = None, opening: str = ""
) -> list[str]:
    """Returns a story as a list of beats, about `hero`, or about a `thing` if given."""
    cast = draw_cast(rng, hero, thing)
    if thing is not None:
        return _tell(patterns()["thing_story"], cast, rng)
    openings, plot = _draw_plot(rng)
    beats = [expand(opening or rng.choice(openings), cast, rng), *_tell(plot, cast, rng)]
    friendly = any(cast["F"] in beat for beat in beats)
    endings = patterns()["endings"][0] + (patterns()["friend_endings"][0] if friendly else ())
    beats.append(expand(rng.choice(endings), cast, rng))
    if rng.random() < 0.25:
        beats.append(expand(rng.choice(patterns()["codas"][0]), cast, rng))
    return beats


def _draw_plot(rng: random.Random) -> tuple[tuple[str, ...], Plot]:
    """Returns openings and a plot that do not contradict each other."""
    draw = rng.random()
    if draw < 0.1:
        return patterns()["lone_openings"][0], patterns()["new_friend"]
    name = rng.choice(words.PLOTS)
    two = draw < 0.25 and name in words.PLOTS_FOR_TWO
    return patterns()["two_openings" if two else "openings"][0], patterns()[name]


def story_text(rng: random.Random) -> str:
    beats = story(rng, thing=rng.choice(words.THINGS) if rng.random() < 0.22 else None)
    if rng.random() < 0.06:  # so that a prompt from the middle of a story is continued as well
        beats = beats[rng.randrange(1, len(beats) - 2) :]
    return " ".join(beats)


def _animal_text(rng: random.Random, animal: str) -> str:
    home, food, sound, young, fact = facts.ANIMAL_FACTS[animal]
    one = capital(expand(f"a {animal}", {}, rng))
    pattern = (
        f"[{one} is an animal that lives {home}.|{one} lives {home}.] {fact} "
        f"[It likes to eat {food}.|It eats {food}.] A young {animal} is called a {young}. "
        f"[When it calls, it {sound}.|{one} {sound}.] "
        f"[Many children like the {animal}.|People have told stories about the {animal} for a long time.|]"
    )
    return expand(pattern, {}, rng)


def season_text(rng: random.Random, season: str) -> str:
    signs = facts.SEASONS[season]
    pattern = (
        f"[In {season}, {signs}.|{capital(season)} is a beautiful time of the year. In {season}, {signs}.] "
        "[People like to walk outside.|Many people like this season best."
        "|The evenings are a good time for a story.] "
        "[Every season has its own colours.|Then the year goes on.]"
    )
    return expand(pattern, {}, rng)


def trade_text(rng: random.Random, trade: str) -> str:
    work, habit, tools = facts.TRADES[trade]
    pattern = (
        f"A {trade} {work}. A good {trade} {habit}. For the work, a {trade} needs {tools}. "
        f"[Without the {trade}, life would be harder.|It is hard work, but it is good work."
        f"|Many children want to be a {trade} one day.]"
    )
    return expand(pattern, {}, rng)


def _how_to_text(rng: random.Random) -> str:
    task = rng.choice(tuple(facts.HOW_TO))
    return expand(f"[To|If you want to] {task}, do this. {facts.HOW_TO[task]}", {}, rng)


def _letter(rng: random.Random, cast: Cast) -> str:
    greeting, *body = patterns()["letter"]
    middle = " ".join(_tell(tuple(body), cast, rng))
    start = expand(rng.choice(greeting), cast, rng)
    return f"{start}\n{middle}\n" + expand("[With love|Yours], {N}", cast, rng)


def plain_text(rng: random.Random) -> str:
    """Returns a document that is no story: facts, instructions, a talk, a letter or a day."""
    cast = draw_cast(rng)
    builders: tuple[Callable[[], str], ...] = (
        lambda: _animal_text(rng, rng.choice(tuple(facts.ANIMAL_FACTS))),
        lambda: season_text(rng, rng.choice(tuple(facts.SEASONS))),
        lambda: trade_text(rng, rng.choice(tuple(facts.TRADES))),
        lambda: _how_to_text(rng),
        lambda: "\n".join(_tell(patterns()["talk"], cast, rng)),
        lambda: _letter(rng, cast),
        lambda: " ".join(_tell(patterns()["day"], cast, rng)),
    )
    return rng.choice(builders)()
