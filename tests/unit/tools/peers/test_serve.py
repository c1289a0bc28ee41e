from tools.peers.serve import ServeRound, report_of_streams
from tpiedge.lab.bench.serve_figures import RoundFigures, TimedAnswer


def figures(streams: int, step_s: float) -> RoundFigures:
    """Answers in step: a token of each stream every `step_s`."""
    token_s = tuple(1 + step_s * number for number in range(9))
    return RoundFigures.of([TimedAnswer(0.0, token_s, token_s[-1], 8)] * streams, streams)


def test_what_both_come_to() -> None:
    rounds = [
        ServeRound(figures(16, 0.5), figures(16, step_s), peer_prefill=50, own_prefill=100)
        for step_s in (0.25, 0.125, 0.25)
    ]
    found = report_of_streams(16, rounds)
    assert (found["streams"], found["rounds"]) == (16, 3)
    answering = found["answering_tokens_per_s"]
    assert answering["llama_server"] == {"median": 32, "min": 32, "max": 32}
    assert answering["tpiedge"] == {"median": 64, "min": 64, "max": 128}
    assert answering["times_that_of_llama_server"] == {"median": 2, "min": 2, "max": 4}
    assert (answering["required"], answering["met"]) == (1.8, True)
    own = found["answering_to_own_prefill"]
    assert (own["ratio"], own["required"], own["met"]) == (
        {"median": 0.64, "min": 0.64, "max": 1.28},
        0.70,
        False,
    )
    assert found["prefill_tokens_per_s"]["times_faster_than_llama_server"]["median"] == 2
    assert found["gap_s_p99"]["times_that_of_llama_server"]["median"] == 0.5
    assert found["first_s_p50"]["tpiedge"]["median"] == 1
    of_one = report_of_streams(1, rounds)
    assert (of_one["answering_tokens_per_s"]["required"], of_one["answering_to_own_prefill"]["met"]) == (
        None,
        None,
    )
