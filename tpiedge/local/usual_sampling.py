"""How a model's makers have its tokens drawn, which is the default of every chat and of the API."""

from pathlib import Path

from tpiedge.engine.sampling import MAX_TOP_K, MIN_P, REPETITION_PENALTY, TOP_P
from tpiedge.model.fields import ConfigFields
from tpiedge.model.folder import has_file, read_json
from tpiedge.wire.requests import Sampling

USUAL = Sampling(temperature=0.8, top_p=0.95, min_p=0.05)
"""Of a model that says nothing: the whole vocabulary at temperature 1 lets a small one talk nonsense."""

_FILE = "generation_config.json"
_HOTTEST = 100.0  # what people may ask for is less
_FILE_LIMIT = 1_000_000
_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def usual_sampling(folder: Path | None) -> Sampling:
    """What generation_config.json in the folder says; USUAL where it says nothing. Raises UserError."""
    if folder is None or not has_file(folder, _FILE):
        return USUAL
    fields = ConfigFields(str(folder / _FILE), read_json(folder, _FILE, _FILE_LIMIT))
    greedy = not fields.flag("do_sample", True)
    if all(fields.raw(key) is None for key in _KEYS) and not greedy:
        return USUAL
    temperature = _number(fields, "temperature", 0.0, _HOTTEST, 1.0)
    top_k = fields.optional_integer("top_k", -1, MAX_TOP_K) or 0
    return Sampling(
        temperature=0.0 if greedy else temperature,
        top_k=max(top_k, 0),
        top_p=_number(fields, "top_p", TOP_P.low, TOP_P.high, 1.0),
        min_p=_number(fields, "min_p", MIN_P.low, MIN_P.high, 0.0),
        repetition_penalty=_number(
            fields, "repetition_penalty", REPETITION_PENALTY.low, REPETITION_PENALTY.high, 1.0
        ),
    )


def _number(fields: ConfigFields, key: str, low: float, high: float, neutral: float) -> float:
    found = fields.optional_number(key, low, high)
    return neutral if found is None else found
