"""The answers of one server and the folder of their records, without a socket."""

import time

from tests.fakes.service import PACK
from tpiedge.answers.shelf import AnswerShelf
from tpiedge.api.guard import Guard
from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.records import AcceptedRequest
from tpiedge.api.server import Api


class KeptAnswers(AnswerShelf):
    def __init__(self, records, service, grace_s, now=time.monotonic):
        super().__init__(service, grace_s, now)
        self.records, self.service = records, service

    def recover_all(self):
        return self.recover(self.records.found(lambda pack: self.service.packed(pack).tokenizer))

    def ask(self, parsed, name, client):
        """The reader of a new answer."""
        accepted = AcceptedRequest(name, parsed.prompts, parsed.each, parsed.reply, 0, "m", PACK)
        question = accepted.question(self.service.tokenizer)
        return self.accept(question, client, lambda: self.records.create(accepted))

    def api(self, secret, limits=None):
        guard = Guard("localhost", ApiKeys(), secret)
        return Api(self.service, guard, limits or Limits(), self, self.records)

    def close(self, limit_s=0.0):
        super().close(limit_s)
        self.records.close(limit_s)
