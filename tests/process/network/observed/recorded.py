"""A cluster, and what somebody saw who listened to its network from the first packet to the first answer."""

import re
import socket
from dataclasses import dataclass

from tests.process.command import run_command, wait_for
from tests.process.conftest import PROMPT, TOKENS
from tests.process.faulty import Fault
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import MASTER, Namespaces
from tests.process.network.observed.capture import Capture, Recording
from tests.process.serving.machines import Worker

MARKER = b"if this is not found, nothing would be found"
#: Tokens of an answer that is still under way when a node is held.
STORY = 80
_JOIN_S = 90.0


@dataclass(frozen=True)
class Observed:
    """`recording`, of a time in which `token` was used, weights were shipped, and `answer` was given to PROMPT. While
    worker2 is `held`, it begins no step."""

    cluster: NetworkCluster
    recording: Recording
    token: str
    answer: str
    held: Fault


def observe(cluster: NetworkCluster, namespaces: Namespaces) -> Observed:
    """One worker joins with a token and one with a code; weights are shipped, and a question is answered."""
    held = Fault("held", cluster.folder / "held")
    with Capture(namespaces) as capture:
        cluster.start_master()
        token = cluster.token()
        cluster.join("worker1", "--token", token, token=False)
        _approve(cluster, cluster.join("worker2", token=False, program=held.program))
        cluster.wait_ready(3)
        answer = cluster.ask(PROMPT, TOKENS)
        _say_in_the_open(namespaces)
    return Observed(cluster, capture.recording(), token, answer, held)


def _approve(cluster: NetworkCluster, worker: Worker) -> None:
    """Types the code that the worker shows."""
    wait_for(lambda: "the code of this worker is" in worker.log, _JOIN_S)
    code = re.search(r"the code of this worker is ([^;]+);", worker.log)[1]
    ended = run_command("nodes", "approve", code, TPIEDGE_STATE=str(cluster.state))
    assert ended.status == 0, ended.err + cluster.logs()


def _say_in_the_open(namespaces: Namespaces) -> None:
    """The marker in two packets from a worker's machine to the master's."""
    with socket.create_server((namespaces.addresses[MASTER], 0)) as server:
        with namespaces.inside("worker1"):
            client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for part in (MARKER[:20], MARKER[20:]):
                client.sendall(part)
                assert accepted.recv(100) == part
