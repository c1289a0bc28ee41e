"""`tpiedge`: the entry point, and how every error ends a command.

Exit statuses: 0 done; 1 any other failure; 2 bad input; 3 another node failed; 4 this computer lacks memory, disk
space or a working disk; 70 a defect of tpiedge; 130 interrupted.
"""

import os
import signal
import sys
import traceback

import click

from tpiedge import __version__
from tpiedge.cli.bench import bench
from tpiedge.cli.demo import demo
from tpiedge.cli.pack import pack, unpack
from tpiedge.cli.run import run
from tpiedge.errors import InternalError, TpiedgeError

__all__ = ["cli", "main"]

_INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tpiedge")
def cli() -> None:
    """Serve one language model with several weak machines."""


for command in (run, demo, pack, unpack, bench):
    cli.add_command(command)


def main() -> None:
    """Run a command; every error is one line on standard error and an exit status."""
    # A terminal that goes away and a polite kill end the command as Ctrl-C does: in order, children included.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    sys.exit(_run())


def _run() -> int:
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return 2
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except TpiedgeError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone, like `tpiedge ... | head`: nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("TPIEDGE_DEBUG"):
            traceback.print_exc()
        hint = "" if os.environ.get("TPIEDGE_DEBUG") else " (TPIEDGE_DEBUG=1 shows where)"
        return _fail(f"a defect of tpiedge: {type(error).__name__}: {error}{hint}", InternalError.exit_code)
    return 0


def _fail(message: str, status: int) -> int:
    line = " ".join(message.split())
    click.echo(f"tpiedge: {line}", err=True)
    return status


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt
