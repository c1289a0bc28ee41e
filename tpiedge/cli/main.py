"""Runs commands, and ends every error with one line and an exit status.

Exit statuses: 0 done; 1 any other failure; 2 bad input; 3 another node failed; 4 lack of memory, disk space or a
working disk; 70 a defect of tpiedge; 130 interrupted."""

import errno
import os
import sys
import traceback
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from tpiedge.cli.entry import Terminated, honour_signals
from tpiedge.cli.options import usage_words
from tpiedge.cli.settings import ConfiguredGroup
from tpiedge.errors import DiskFull, InternalError, TpiedgeError, UserError
from tpiedge.host.process import LEAST, check_address_space, raise_limits

VERBS = {
    "run": ("cli.run:run", "Chat with a model on this computer, or answer one prompt."),
    "demo": ("cli.run:demo", "Watch three nodes with different shares answer with the bundled model."),
    "pack": ("cli.pack:pack", "Convert MODEL (or random weights) to a pack, the format that nodes read."),
    "unpack": (
        "cli.pack:unpack",
        "Write the pack MODEL back as a Hugging Face checkpoint in the new folder OUT, bit for bit; "
        "quantised matrices as f32, which is exact.",
    ),
    "import-gguf": (
        "cli.pack:import_gguf",
        "Convert a model in a GGUF FILE to a pack, with its tokenizer.",
    ),
    "bench": (
        "lab.verbs.bench:bench",
        "Measure this computer; without a command, its decode speed in about 20 seconds.",
    ),
    "eval": ("lab.verbs.eval:evaluate", "Measure a model's quality with a text."),
    "doctor": (
        "cli.doctor:doctor",
        "Check this computer and its network within ten seconds; changes nothing.",
    ),
    "config": ("cli.config:config", "Show and check settings."),
    "completion": ("cli.main:completion", "Print completions: `source <(tpiedge completion bash)`."),
    "pull": (
        "cli.models:pull",
        "Fetch MODEL from the hub: an alias (`tpiedge ls --all`), org/name, or org/name:Q4_K_M for a GGUF file.",
    ),
    "ls": (
        "cli.models:ls",
        "List pulled models and cached packs, by the names that every verb takes.",
    ),
    "show": ("cli.models:show", "Show MODEL: its shape, size, licence and location."),
    "rm": ("cli.models:rm", "Delete each MODEL and its packs from the cache."),
    "shards": (
        "cli.models:shards",
        "Manage the shards that this computer keeps as a worker: list, remove, limit.",
    ),
    "cache": (
        "cli.cache:cache",
        "List and clear what the machines keep of prompts on disk, for the KV cache.",
    ),
    "token": ("cli.token:token", "Make, list and revoke tokens, with which new workers join."),
    "keys": ("cli.keys:keys", "Make, list and revoke API keys, with which phones and programs use the API."),
    "master": ("cli.master:master", "Serve MODEL with this machine and the workers that join it."),
    "use": ("cli.use:use", "Serve MODEL with the running master of this computer."),
    "worker": ("cli.worker:worker", "Join a master and compute a share of its model."),
    "service": (
        "cli.service:service",
        "Have systemd run a master or a worker: install, status, logs, uninstall.",
    ),
    "chat": ("cli.chat_client:chat", "Talk to a running master."),
    "nodes": (
        "cli.nodes:nodes",
        "Show which node has which share, and why; approve, drain, retry and revoke workers.",
    ),
    "top": ("cli.top:top", "Watch the running cluster, updated every second."),
    "trace": (
        "lab.verbs.trace:trace",
        "Show what each node did during a run of `tpiedge run --trace FILE`.",
    ),
    "testbed": (
        "lab.verbs.testbed:testbed",
        "Emulate several devices on this computer: networks, processors and memory.",
    ),
}
"""(import path, line of --help) of each verb. --help imports no verb. `tpiedge config show` has the same order."""


_SYNONYMS = {"list": "ls"}
_OLLAMA_VERBS = {
    "ps": "'tpiedge top' shows what a running master serves, and with which machines",
    "serve": "'tpiedge master MODEL' serves a model, 'tpiedge master demo' the bundled one",
    "stop": "Ctrl-C where 'tpiedge master' or 'tpiedge run' runs ends it, --idle-unload of the master frees memory; "
    "'tpiedge nodes drain' takes out one worker",
    "create": "'tpiedge import-gguf FILE --name NAME' makes a model of a file; --system of 'tpiedge run' sets a prompt",
    "cp": "'tpiedge import-gguf FILE --name NAME' and 'tpiedge pack MODEL --name NAME' choose a model's name",
    "push": "models are only fetched: 'tpiedge pull MODEL'",
}
"""Verb of Ollama -> what does the same here."""


class _Verbs(ConfiguredGroup):
    """Runs verbs of Ollama that have another name here, and refuses Ollama's other verbs."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in _OLLAMA_VERBS:
            raise UserError(f"there is no verb '{args[0]}': {_OLLAMA_VERBS[args[0]]}")
        return super().resolve_command(ctx, [_SYNONYMS.get(args[0], args[0]), *args[1:]])


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tpiedge", prog_name="tpiedge", help="Show the version.")
def cli() -> None:
    """Serve one language model with several weak machines."""


for _name, (_path, _line) in VERBS.items():
    cli.add_lazy(_name, f"tpiedge.{_path}", _line)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    kind = get_completion_class(shell)
    if kind is None:
        raise InternalError(f"click has no completion for {shell}")
    # click reads this variable: every verb of the command completes through it.
    click.echo(kind(ctx.find_root().command, {}, "tpiedge", "_TPIEDGE_COMPLETE").source())


def main() -> None:
    """Runs a command and exits. An error becomes one line and an exit status."""
    honour_signals()
    raise_limits()
    sys.exit(_run())


def _run() -> int:
    try:
        check_address_space(LEAST)  # before anything large is imported
        cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return 2
    except click.ClickException as error:
        return _fail(usage_words(error), error.exit_code)
    except TpiedgeError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort, Terminated) as ended:
        # click makes an Abort of a KeyboardInterrupt, whose words may say more.
        return _fail(str(ended.__cause__ or "") or "interrupted", 130)
    except OSError as error:
        return _system_failure(error)
    except Exception as error:
        return _defect(error)
    return 0


def _system_failure(error: OSError) -> int:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        words = "no space left for the output: free some, or write elsewhere"
        if error.filename is not None:
            words = str(DiskFull.at(Path(os.fsdecode(error.filename))))
        return _fail(words, DiskFull.exit_code)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and error.filename is not None:
        words = f"cannot use {error.filename}: {error.strerror}: change its permissions, or give another path"
        return _fail(words, UserError.exit_code)
    return _defect(error)


def _defect(error: Exception) -> int:
    wanted = bool(os.environ.get("TPIEDGE_DEBUG"))
    if wanted:
        traceback.print_exception(error)
    hint = "" if wanted else " (TPIEDGE_DEBUG=1 shows where)"
    return _fail(f"a defect of tpiedge: {type(error).__name__}: {error}{hint}", InternalError.exit_code)


def _fail(message: str, status: int) -> int:
    line = " ".join(message.split())
    click.echo(f"tpiedge: {line}", err=True)
    return status
