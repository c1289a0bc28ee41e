"""Ranges of sampling parameters, for flags and for the API's fields."""

from importlib.util import find_spec

from tpiedge.errors import UserError
from tpiedge.wire.fields import Range
from tpiedge.wire.requests import Sampling

TEMPERATURE = Range(0.0, 2.0)  # OpenAI's
TOP_P = Range(1e-9, 1.0)  # at 0, no token would be left
MIN_P = Range(0.0, 1 - 1e-9)  # at 1, rounding could drop the likeliest token
REPETITION_PENALTY = Range(0.1, 10.0)
PENALTY = Range(-2.0, 2.0)
BIAS = Range(-100.0, 100.0)
MAX_TOP_K = 2**32 - 1
MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 20
MAX_BIASES = 1024
NO_GRAMMARS = "answers by a grammar need llguidance: pip install 'tpiedge[grammar]' on the master's machine"

_RANGES = {
    "temperature": TEMPERATURE,
    "top_k": Range(0, MAX_TOP_K),
    "top_p": TOP_P,
    "min_p": MIN_P,
    "repetition_penalty": REPETITION_PENALTY,
    "presence_penalty": PENALTY,
    "frequency_penalty": PENALTY,
    "seed": Range(0, MAX_SEED),
    "logprobs": Range(0, MAX_LOGPROBS),
}


def check_sampling(sampling: Sampling, vocab_size: int) -> None:
    """Raises UserError, naming the flag, if a parameter is out of range."""
    for name, allowed in _RANGES.items():
        _check(f"--{name.replace('_', '-')}", getattr(sampling, name), allowed)
    _check("the number of --logit-bias", len(sampling.logit_bias), Range(0, MAX_BIASES))
    for token, bias in sampling.logit_bias:
        _check("a token id of --logit-bias", token, Range(0, vocab_size - 1))
        _check(f"the --logit-bias of token {token}", bias, BIAS)
    if len({token for token, _ in sampling.logit_bias}) < len(sampling.logit_bias):
        raise UserError("--logit-bias names a token id twice: give each id once")


def grammars_installed() -> bool:
    return find_spec("llguidance") is not None


def _check(what: str, value: float, allowed: Range) -> None:
    if not allowed.low <= value <= allowed.high:
        raise UserError(f"{what} is {value}: give a number from {allowed.low} to {allowed.high}")
