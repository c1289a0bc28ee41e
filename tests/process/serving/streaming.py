"""A long answer that is read while a test does something else."""

import threading
import time

import openai

#: Where it is no promise: generous.
_LIMIT_S = 90.0


class Streaming:
    """Reads an answer in a thread of its own. Made, it has begun."""

    def __init__(self, client: openai.OpenAI, model: str, prompt: str, max_tokens: int) -> None:
        self.text = ""
        self.error: openai.APIError | None = None
        #: When it ended, by the monotonic clock.
        self.ended_at = 0.0
        self._begun = threading.Event()
        self._more = threading.Event()
        self._client = client
        self._request = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert self._begun.wait(_LIMIT_S), "no answer began"

    def join(self, limit_s: float = _LIMIT_S) -> None:
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), f"the answer goes on after {limit_s} s"

    def wait_for_text(self, characters: int, limit_s: float = _LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while len(self.text) < characters:
            assert self._thread.is_alive(), f"the answer has ended: {self.error}"
            assert time.monotonic() < deadline, f"not within {limit_s} s: {self.text!r}"
            self._more.wait(0.1)
            self._more.clear()

    def wait_until_it_stalls(self, quiet_s: float) -> None:
        while self._more.wait(quiet_s):
            self._more.clear()
        assert self._thread.is_alive(), f"the answer has ended: {self.error}"

    def _read(self) -> None:
        try:
            more = {"ignore_eos": True}
            for chunk in self._client.completions.create(**self._request, stream=True, extra_body=more):
                self.text += "".join(choice.text for choice in chunk.choices)
                self._begun.set()
                self._more.set()
        except openai.APIError as error:
            self.error = error
        finally:
            self.ended_at = time.monotonic()
            self._begun.set()
