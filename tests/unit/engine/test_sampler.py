import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tpiedge.engine.sampler import Sampler, uniform
from tpiedge.engine.sampling import check_sampling
from tpiedge.errors import InternalError, UserError
from tpiedge.kernels.draw import Filters
from tpiedge.kernels.draw import survivors as kept
from tpiedge.wire.requests import Sampling

GREEDY = Sampling()
PLAIN = replace(GREEDY, temperature=1.0)


def draw(
    logits: list[float] | torch.Tensor, sampling: Sampling, prompt: tuple[int, ...] = (), **more: object
):
    logits_V = torch.as_tensor(logits, dtype=torch.float32)
    return Sampler(sampling, prompt, len(logits_V), **more).sample(logits_V)


def random_logits(vocab: int, seed: int, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * scale


def survivors(logits_V: torch.Tensor, sampling: Sampling) -> set[int]:
    filters = Filters(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    ids, _ = kept(logits_V.numpy(), filters)
    return set(ids.tolist())


def transformers_survivors(logits_V: torch.Tensor, sampling: Sampling) -> set[int]:
    from transformers.generation.logits_process import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    scores = warpers(torch.zeros(1, 1, dtype=torch.long), logits_V[None].clone())[0]
    return set(torch.nonzero(scores > -math.inf).flatten().tolist())


class TestGreedy:
    def test_takes_the_lowest_id_among_equals(self):
        assert draw([0.0, 3.0, 2.0, 3.0, 3.0], GREEDY).token == 1
        flat = torch.zeros(40_000)
        flat[[39_999, 17_000]] = 1.0
        assert draw(flat, GREEDY).token == 17_000


class TestFilters:
    @pytest.mark.parametrize("vocab", [7, 1003, 5000])
    @pytest.mark.parametrize(
        "change",
        [
            *({"top_k": count} for count in (1, 5, 100_000)),
            *({"top_p": share} for share in (0.1, 0.9, 0.999, 1e-9)),
            *({"min_p": least} for least in (0.05, 0.999)),
            {"top_k": 40, "top_p": 0.95},
            {"top_k": 40, "top_p": 0.95, "min_p": 0.02, "temperature": 0.7},
            {"top_k": 300, "top_p": 0.8, "min_p": 0.001, "temperature": 2.5},
        ],
    )
    def test_same_survivors_as_transformers(self, change, vocab):
        sampling = replace(PLAIN, **change)
        for seed in range(3):
            logits_V = random_logits(vocab, seed)
            assert survivors(logits_V, sampling) == transformers_survivors(logits_V, sampling)


class TestPenalties:
    def test_repetition_penalty_is_that_of_transformers(self):
        from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

        logits_V, prompt, answer = random_logits(1003, 3), (5, 900, 5, 17), (17, 3)
        sampling = replace(GREEDY, repetition_penalty=1.7)
        scores = Sampler(sampling, prompt, 1003, answer)._adjusted(logits_V.numpy())
        history = torch.tensor([prompt + answer])
        wanted = RepetitionPenaltyLogitsProcessor(1.7)(history, logits_V[None].clone())[0]
        np.testing.assert_array_equal(scores, wanted.numpy())

    def test_bias_is_applied_before_the_repetition_penalty(self):
        from transformers.generation.logits_process import (
            LogitsProcessorList,
            RepetitionPenaltyLogitsProcessor,
            SequenceBiasLogitsProcessor,
        )

        logits_V = torch.tensor([1.0, -1.0, 0.5])
        sampling = replace(GREEDY, repetition_penalty=2.0, logit_bias=((0, -3.0), (2, 1.0)))
        scores = Sampler(sampling, (0,), 3)._adjusted(logits_V.numpy())
        processors = LogitsProcessorList(
            [SequenceBiasLogitsProcessor([[[0], -3.0], [[2], 1.0]]), RepetitionPenaltyLogitsProcessor(2.0)]
        )
        wanted = processors(torch.tensor([[0]]), logits_V[None].clone())[0]
        np.testing.assert_array_equal(scores, wanted.numpy())
        assert scores.tolist() == [-4.0, -1.0, 1.5]

    def test_presence_and_frequency_count_the_answer_only(self):
        sampling = replace(GREEDY, presence_penalty=0.5, frequency_penalty=0.25)
        sampler = Sampler(sampling, (0, 0, 0), 4)
        logits = np.zeros(4, dtype=np.float32)
        assert sampler._adjusted(logits).tolist() == [0.0, 0.0, 0.0, 0.0]
        for token in (1, 1, 2):
            sampler.accept(token)
        assert sampler._adjusted(logits).tolist() == [0.0, -1.0, -0.75, 0.0]

    def test_rebuilt_sampler_continues_like_the_old_one(self):
        sampling = replace(PLAIN, repetition_penalty=1.3, frequency_penalty=0.5, seed=9, top_p=0.9)
        steps = [random_logits(100, seed) for seed in range(30)]
        sampler, answer = Sampler(sampling, (4, 5), 100), []
        for logits_V in steps:
            token = sampler.sample(logits_V).token
            assert token == sampler.sample(logits_V).token
            assert token == Sampler(sampling, (4, 5), 100, answer).sample(logits_V).token
            sampler.accept(token)
            answer.append(token)
        assert len(set(answer)) > 15


class TestDraw:
    def test_random_numbers_of_a_seed_never_change(self):
        """A change here changes every user's answers for a given seed."""
        digest = hashlib.blake2b(
            bytes(8) + bytes([5]) + bytes(7), digest_size=8, person=b"tpiedge sampler"
        ).digest()
        assert uniform(0, 5) == (int.from_bytes(digest, "little") >> 11) / 2**53
        assert uniform(2**64 - 1, 131_071).hex() == "0x1.aaf436f47b800p-10"

    def test_draws_the_same_without_native_kernels(self, monkeypatch):
        changes = (
            {},
            {"top_p": 0.9},
            {"top_k": 40, "min_p": 0.02},
            {"repetition_penalty": 1.2, "top_p": 0.5},
        )
        cases = [
            (random_logits(vocab, seed), replace(PLAIN, temperature=0.8, seed=seed, logprobs=5, **change))
            for change in changes
            for vocab in (50, 5000)
            for seed in range(10)
        ]
        drawn = [draw(logits_V, sampling, (1, 2)) for logits_V, sampling in cases]
        monkeypatch.setattr("tpiedge.kernels.draw.kernel_library", lambda: None)
        assert drawn == [draw(logits_V, sampling, (1, 2)) for logits_V, sampling in cases]

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_refuses_broken_logits(self, bad):
        for sampling in (GREEDY, PLAIN):
            with pytest.raises(InternalError, match=r"position 3"):
                draw([0.0, bad, 1.0], sampling, (0, 1, 2))


class TestLogprobs:
    def test_logprobs_ignore_the_logit_bias(self):
        logits_V = random_logits(1003, 2)
        wanted = torch.log_softmax(logits_V.double(), 0)
        sampling = replace(GREEDY, logprobs=3, logit_bias=((7, 100.0),), temperature=0.0)
        sampled = draw(logits_V, sampling)
        top = torch.topk(wanted, 3).indices.tolist()
        assert sampled.token == 7
        assert [token for token, _ in sampled.logprobs] == [*top, 7]
        for token, logprob in sampled.logprobs:
            assert logprob == pytest.approx(float(wanted[token]), abs=1e-9)

    def test_top_logprobs_order_ties_by_id_and_omit_masked_tokens(self):
        assert [t for t, _ in draw([1.0] * 5, replace(GREEDY, logprobs=3)).logprobs] == [0, 1, 2]
        logits = [-math.inf, 1.0, -math.inf]
        assert draw(logits, replace(GREEDY, logprobs=3)).logprobs == ((1, 0.0),)


class TestCheck:
    @pytest.mark.parametrize(
        ("change", "flag"),
        [
            ({"temperature": -0.1}, "--temperature"),
            ({"temperature": math.nan}, "--temperature"),
            ({"top_k": -1}, "--top-k"),
            ({"top_p": 0.0}, "--top-p"),
            ({"min_p": 1.0}, "--min-p"),
            ({"repetition_penalty": 0.0}, "--repetition-penalty"),
            ({"presence_penalty": 2.1}, "--presence-penalty"),
            ({"frequency_penalty": -2.1}, "--frequency-penalty"),
            ({"seed": 2**64}, "--seed"),
            ({"logprobs": 21}, "--logprobs"),
            ({"logit_bias": ((100, 0.0),)}, "--logit-bias"),
            ({"logit_bias": ((5, 100.5),)}, "--logit-bias of token 5"),
            ({"logit_bias": ((5, math.nan),)}, "--logit-bias of token 5"),
            ({"logit_bias": ((5, 1.0), (5, 2.0))}, "--logit-bias"),
        ],
    )
    def test_bad_sampling_value_is_refused_with_its_flag(self, change, flag):
        with pytest.raises(UserError, match=flag):
            check_sampling(replace(GREEDY, **change), 100)


def packed(vocab: int, *allowed: int) -> np.ndarray:
    bits = np.zeros(vocab, np.bool_)
    bits[list(allowed)] = True
    return np.packbits(bits, bitorder="little")


@pytest.mark.parametrize("sampling", [GREEDY, replace(PLAIN, top_k=1), replace(PLAIN, top_p=0.1, min_p=0.9)])
def test_best_allowed_token_is_drawn_under_a_mask(sampling: Sampling) -> None:
    """Filters look at what is left, and log probabilities are the model's own."""
    logits_V = torch.tensor([9.0, 1.0, 5.0, 4.0, 8.0])
    sampler = Sampler(replace(sampling, logprobs=1), (), 5)
    drawn = sampler.sample(logits_V, packed(5, 1, 2, 3))
    assert drawn.token == 2
    assert [token for token, _ in drawn.logprobs] == [0, 2]
    assert logits_V.tolist() == [9.0, 1.0, 5.0, 4.0, 8.0]


def test_empty_grammar_mask_refuses_the_request() -> None:
    with pytest.raises(UserError, match="the grammar allows none of the model's tokens at position 0"):
        Sampler(PLAIN, (), 4).sample(torch.zeros(4), packed(4))
