"""A server in a process of its own, whose memory can be looked at: `python -m tests.http.served`.

Prints its URL, and ends with its standard input.
"""

import sys
from dataclasses import replace

from tests.fakes.service import FakeService
from tests.http.conftest import DEMO, SECRET, InstantTemplate
from tpiedge.api.guard import Guard
from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.server import ApiServer
from tpiedge.host.addresses import Address
from tpiedge.model.tokenizer import Tokenizer

CONTEXT = 4096


def main() -> None:
    service = FakeService(Tokenizer.open(DEMO), InstantTemplate(), vocab_size=2048, max_sequence=CONTEXT)
    service.script = lambda generation: generation.finish()
    # A client that sends much hears why it is refused, however long that takes beside other tests.
    limits = replace(Limits.of_context(CONTEXT), linger_s=60)
    server = ApiServer(service, Guard("127.0.0.1", ApiKeys(), SECRET), Address("127.0.0.1", 0), limits)
    server.start()
    sys.stdout.write(f"{server.url}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.close()


if __name__ == "__main__":
    main()
