import importlib.util

import pytest

from tests.fakes.service import FakeService
from tests.unit.api.test_requests import VOCABULARY, chat, completion, service
from tpiedge.api.errors import ApiError

__all__ = ["service"]

FORM = {"type": "json_schema", "json_schema": {"name": "thing", "schema": {"type": "object"}, "strict": True}}


@pytest.fixture(autouse=True)
def _needs_llguidance() -> None:
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")


def test_missing_grammar_library_error_says_what_to_install(service, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("tpiedge.engine.sampling.find_spec", lambda name: None)
    with pytest.raises(ApiError, match=r"pip install 'tpiedge\[grammar\]'") as raised:
        chat(service, response_format=FORM)
    assert raised.value.status == 400
    assert chat(service, response_format={"type": "text"})[0].grammar is None


def test_a_model_without_a_tokenizer_has_no_grammars():
    mute = FakeService(None, vocab_size=VOCABULARY)
    with pytest.raises(ApiError, match="has no tokenizer"):
        completion(mute, prompt=[1], grammar="x")
