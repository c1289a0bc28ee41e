import itertools
import statistics

import pytest

from tpiedge.errors import UserError
from tpiedge.lab.bench.serve_run import RandomPrompts, arrivals, parse_prompts


def test_prompts_have_nothing_in_common_but_what_they_share() -> None:
    random = RandomPrompts(2000, shared=16, seed=1)
    prompts = [random.of(48) for _ in range(50)]
    assert {len(prompt) for prompt in prompts} == {48}
    assert {prompt[:16] for prompt in prompts} == {prompts[0][:16]}
    assert len({prompt[16:20] for prompt in prompts}) == 50
    assert all(3 <= token < 2000 for prompt in prompts for token in prompt)
    assert random.unlike(48)[:16] != prompts[0][:16]
    assert random.of(8) == prompts[0][:8]


def test_arrivals_are_a_poisson_process() -> None:
    times = list(itertools.islice(arrivals(4.0, 7), 20_000))
    waits = [later - earlier for earlier, later in itertools.pairwise([0.0, *times])]
    assert min(waits) > 0
    assert statistics.fmean(waits) == pytest.approx(0.25, rel=0.03)
    assert statistics.stdev(waits) == pytest.approx(0.25, rel=0.03)
    # Without memory: waiting as long again is as likely as waiting at all.
    long = [wait for wait in waits if wait > 0.25]
    assert sum(wait > 0.5 for wait in long) / len(long) == pytest.approx(len(long) / len(waits), rel=0.05)
    assert times[:9] == list(itertools.islice(arrivals(4.0, 7), 9))
    assert times[:9] != list(itertools.islice(arrivals(4.0, 8), 9))


def test_a_file_of_prompts() -> None:
    lines = ['"two\\nlines"', "plain text", "", "[1, 2, 3]", "[1, -2]", "17", '{"a": 1}', '""']
    assert parse_prompts("\n".join(lines), "file") == [
        *("two\nlines", "plain text", (1, 2, 3)),
        *("[1, -2]", "17", '{"a": 1}', '""'),
    ]
    with pytest.raises(UserError, match=r"empty\.txt has no prompts"):
        parse_prompts("\n \n", "empty.txt")
