"""What is known of a link's connection."""

import zmq

from tpiedge.transport.monitor import LinkMonitor, LinkState


def test_a_link_that_is_up_already_is_found_up_without_any_time() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as hub, context.socket(zmq.DEALER) as spoke:
        hub.linger = spoke.linger = 0
        port = hub.bind_to_random_port("tcp://127.0.0.1")
        monitor = LinkMonitor(spoke)
        try:
            assert monitor.wait(0.0) is LinkState.WAITING
            spoke.connect(f"tcp://127.0.0.1:{port}")
            spoke.send(b"here")
            assert hub.poll(5000), "nothing came within 5 s"
            assert monitor.wait(0.0) is LinkState.UP
        finally:
            monitor.close()
