"""A cluster whose machines are network namespaces."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import openai

from tests.process.network.namespaces import MASTER, Namespaces
from tests.process.serving.serving import Serving, Worker
from tpiedge.nodes.addresses import Address

__all__ = ["NetworkCluster", "Streaming"]


class NetworkCluster(Serving):
    """Its master is on the machine that the tests are on."""

    def __init__(self, folder: Path, namespaces: Namespaces, *options: object, **more: object) -> None:
        super().__init__(folder, *options, **more)
        self.namespaces = namespaces
        self.address = Address(namespaces.addresses[MASTER], self.port)

    def join(self, name: str, *options: object, token: bool = True) -> Worker:
        """A worker on the machine `name`, which is its own name, too."""
        with self.namespaces.inside(name):
            return self.start_worker(name, *options, token=token)

    @contextlib.contextmanager
    def streaming(self, prompt: str, max_tokens: int) -> Iterator["Streaming"]:
        """A long answer, which has begun."""
        with self.client() as client:
            stream = Streaming(client, self.model, prompt, max_tokens)
            try:
                yield stream
            finally:
                stream.join()


class Streaming:
    """Reads an answer in a thread of its own."""

    def __init__(self, client: openai.OpenAI, model: str, prompt: str, max_tokens: int) -> None:
        self.text = ""
        self.error: openai.APIError | None = None
        #: When it ended, by the monotonic clock.
        self.ended_at = 0.0
        self._begun = threading.Event()
        self._client = client
        self._request = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert self._begun.wait(20), "no answer began"

    def join(self, limit_s: float = 20.0) -> None:
        """Until its end."""
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), f"the answer goes on after {limit_s} s"

    def _read(self) -> None:
        try:
            more = {"ignore_eos": True}
            for chunk in self._client.completions.create(**self._request, stream=True, extra_body=more):
                self.text += "".join(choice.text for choice in chunk.choices)
                self._begun.set()
        except openai.APIError as error:
            self.error = error
        finally:
            self.ended_at = time.monotonic()
            self._begun.set()
