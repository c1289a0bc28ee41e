"""The reference for tpiedge: tiny random models and the results of transformers for them on one machine.

    from tests.reference import CASES, case, reference

    expected = reference(case("llama-gqa-odd"), folder)   # builds the checkpoint there, runs transformers

or, in a test, the session's cache of it:

    def test_tokens(references):                          # the fixture of tests/conftest.py
        expected = references("llama-gqa-odd")
        assert generate(expected.folder, expected.prompt_ids) == expected.greedy_ids
"""

from tests.reference.cases import CASES, Case, case
from tests.reference.families import FAMILIES
from tests.reference.huggingface import Reference, answered, build, hidden_states, reference

__all__ = [
    "CASES",
    "FAMILIES",
    "Case",
    "Reference",
    "answered",
    "build",
    "case",
    "hidden_states",
    "reference",
]
