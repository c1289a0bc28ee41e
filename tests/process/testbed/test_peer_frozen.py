"""A device that freezes or is cut off in the middle of an answer: the command ends and names it, and nothing is left."""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.process.command import Ended, Started, gone, wait_for
from tests.process.testbed.beds import left_of, why_no_testbed, written
from tpiedge.testbed.forwarding import switches
from tpiedge.testbed.running import attach
from tpiedge.testbed.testbed import change_link, members

REASON = why_no_testbed()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.timeout(120)]
