"""Stories that chance draws break no law, and one that breaks a law is found, shortened and shown."""

import pytest

from tests.simulation.cluster import LawBroken, Setup
from tests.simulation.stories import as_test, check, drawn, failure_of, play, shortest


@pytest.mark.fault("P21", "of a whole cluster: no answer is wrong or lost, and nothing is left over")
@pytest.mark.parametrize("seed", range(60))
def test_random_simulations_keep_all_invariants(seed: int) -> None:
    """More of them: python -m tests.simulation FIRST LAST."""
    check(seed)


def test_seed_determines_the_simulation() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_failing_simulation_is_shrunk_to_a_minimal_test() -> None:
    _, events = drawn(3)
    wrong = Setup(error=1)
    failure = failure_of(wrong, events)
    assert failure is not None
    assert failure.law == "every token is the one that was drawn"
    short = shortest(wrong, events, failure.law)
    assert [name for name, *_ in short] == ["ask"]
    namespace: dict[str, object] = {"play": play, "Setup": Setup}
    exec(as_test(wrong, short, failure), namespace)  # noqa: S102
    story = namespace["test_story"]
    assert callable(story)
    with pytest.raises(LawBroken, match=failure.law):
        story()
