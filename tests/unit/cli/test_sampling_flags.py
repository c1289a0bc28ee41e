from typing import Any

import click
from click.testing import CliRunner

from tpiedge.cli.sampling_flags import sampling_of, sampling_options, with_usual
from tpiedge.wire.requests import Sampling

USUAL = Sampling(temperature=0.8, top_p=0.95)


def drawn(*flags: str) -> tuple[Sampling, Sampling]:
    found: list[Sampling] = []

    @click.command()
    @sampling_options
    def command(**values: Any) -> None:
        sampling = sampling_of(values)
        found.extend((sampling, with_usual(sampling, USUAL)))

    ended = CliRunner().invoke(command, flags)
    if ended.exception is not None:
        raise ended.exception
    return found[0], found[1]


def test_an_answer_is_another_one_every_time_unless_a_seed_is_given() -> None:
    seeds = {sampling.seed for _ in range(8) for sampling in drawn()}
    assert len(seeds) == 8, "a new one each time, also with what is usual for the model"
    assert {sampling.seed for sampling in drawn("--seed", "7")} == {7}
    assert {sampling.seed for sampling in drawn("--seed", "0")} == {0}


def test_what_is_usual_counts_where_nothing_is_said() -> None:
    said, of_chat = drawn("--top-p", "0.5")
    assert (said.temperature, said.top_p) == (0.0, 0.5)
    assert (of_chat.temperature, of_chat.top_p) == (0.8, 0.5)
