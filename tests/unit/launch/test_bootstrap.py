"""The first line that a node gets, from its parent alone."""

from dataclasses import fields
from typing import get_args

from tpiedge.launch.bootstrap import NodeBootstrap
from tpiedge.wire.messages import Message

BOOTSTRAP = NodeBootstrap(1, "tcp://h:1", "m", "p", "s", 2, 0.3, 1.5, 60.0, trace="/tmp/part")


def test_a_bootstrap_comes_back_from_its_line() -> None:
    assert NodeBootstrap.from_line(BOOTSTRAP.to_line()) == BOOTSTRAP


def test_no_message_makes_a_node_write_a_trace() -> None:
    kinds = get_args(Message)
    assert len(kinds) > 10
    assert not [kind.__name__ for kind in kinds for field in fields(kind) if "trace" in field.name]
