"""`tpiedge service` makes systemd start, watch and restart a master or a worker."""

import getpass
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click
from platformdirs import user_config_path

from tpiedge.cli.listing import ListingGroup, json_option
from tpiedge.cli.service_command import VERBS, CommandLine, secret_file
from tpiedge.cli.service_unit import FILES, ServiceUnit
from tpiedge.errors import UserError
from tpiedge.host.private_file import private_folder, replace_text
from tpiedge.sanitise import sanitised_line

_BOOTED: Final = Path("/run/systemd/system")  # as sd_booted(3) looks
_LINGERING: Final = Path("/var/lib/systemd/linger")
_LIMIT_S: Final = 60.0


@dataclass(frozen=True)
class _Manager:
    """The systemd of this computer (`system`) or of this user."""

    system: bool

    @property
    def folder(self) -> Path:
        return Path("/etc/systemd/system") if self.system else user_config_path("systemd") / "user"

    def unit(self, verb: str) -> Path:
        return self.folder / f"tpiedge-{verb}.service"

    def check(self) -> None:
        """Raises UserError if systemd does not answer, or looks for units elsewhere."""
        known = dict(one.split("=", 1) for one in self.ask("show-environment").splitlines() if "=" in one)
        looks = Path(known.get("XDG_CONFIG_HOME") or Path.home() / ".config", "systemd", "user")
        if not self.system and looks != self.folder:
            raise UserError(
                f"systemd looks for services in {looks}, not in {self.folder}: unset XDG_CONFIG_HOME here"
            )

    def ask(self, *words: str) -> str:
        return _run(["systemctl", *self._scope, *words])

    def change(self, *words: str) -> None:
        _run([*self._rights, "systemctl", *self._scope, *words])

    def confines(self) -> bool:
        """Whether systemd can limit where a service writes. Starts a short service."""
        properties = [f"--property={line}" for line in FILES]
        try:
            _run([*self._rights, "systemd-run", *self._scope, "--wait", "--quiet", *properties, "true"])
        except UserError as error:
            click.echo(f"systemd cannot limit here where the service writes ({error})", err=True)
            return False
        return True

    def write(self, path: Path, text: str) -> None:
        _run([*self._rights, "install", "-D", "-m", "644", "/dev/stdin", str(path)], text)

    def remove(self, path: Path) -> None:
        _run([*self._rights, "rm", str(path)])

    @property
    def _scope(self) -> list[str]:
        return [] if self.system else ["--user"]

    @property
    def _rights(self) -> list[str]:
        # Only root may end what sudo runs; typing a password takes its own time.
        return ["sudo", "timeout", f"{_LIMIT_S:.0f}"] if self.system and os.geteuid() else []


class _NotDone(UserError):
    """A command did not end in time; it goes on."""


def _run(command: Sequence[str], stdin: str = "") -> str:
    limit_s = None if command[0] == "sudo" else _LIMIT_S
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=limit_s, check=False
        )
        if limit_s is None and done.returncode == 124:  # as timeout(1) ends
            raise subprocess.TimeoutExpired(command, _LIMIT_S)
    except FileNotFoundError:
        raise UserError(f"this computer has no {command[0]}: install it, or type the same as root") from None
    except subprocess.TimeoutExpired:
        raise _NotDone(f"not done within {_LIMIT_S:.0f} s: {shlex.join(command)}") from None
    if done.returncode:
        why = sanitised_line(done.stderr.strip() or f"exit status {done.returncode}", 300)
        raise UserError(f"{shlex.join(command)}: {why}")
    return done.stdout


@click.group(cls=ListingGroup)
def service() -> None:
    """Have systemd run a master or a worker: install, status, logs, uninstall."""


@service.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--system", is_flag=True, help="Start the service with the computer, by sudo; root always does."
)
@click.option("--print", "only_print", is_flag=True, help="Print the unit; change nothing.")
@click.argument("verb", type=click.Choice(VERBS))
@click.argument("flags", metavar="[FLAGS OF IT]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def install(ctx: click.Context, system: bool, only_print: bool, verb: str, flags: tuple[str, ...]) -> None:
    """Install, enable and start 'tpiedge master' or 'tpiedge worker' with its flags."""
    system |= "--system" in flags
    flags = tuple(word for word in flags if word != "--system")
    if os.environ.get("SUDO_USER") and not os.geteuid():
        raise UserError(
            "under sudo the service would be root's: type the same without sudo, with --system after 'install'"
        )
    manager = _Manager(system or not os.geteuid())
    given = CommandLine(ctx, verb, flags)
    account = str(os.geteuid()) if manager.system else ""
    unit = ServiceUnit(verb, given.command(), given.writable(), account, given.values.get("drain_s", 0.0))
    if only_print:
        click.echo(unit.text(), nl=False)
        return
    if not _BOOTED.is_dir() or shutil.which("systemctl") is None:
        plain = shlex.join(["nohup", given.command()[0], verb, *flags])
        raise UserError(
            f"this computer does not run systemd: after each start of the computer, type '{plain} &' instead"
        )
    manager.check()  # before anything is written
    for folder in given.folders:
        private_folder(folder)
    for path, text in given.secrets.items():
        replace_text(path, text)
    unit = replace(unit, confined=manager.confines())
    manager.write(manager.unit(verb), unit.text())
    name = manager.unit(verb).name
    manager.change("daemon-reload")
    manager.change("enable", name)
    try:
        manager.change("restart", name)
        says = _first_words(manager, verb)
    except _NotDone:
        click.echo(f"{name} is still starting: 'tpiedge service status' shows how far it is")
        return
    except UserError:
        raise UserError(f"{name} does not start: {_last_words(manager, verb)}") from None
    click.echo(f"{name} runs{': ' if says else ''}{says}")
    click.echo(f"'tpiedge service status', 'logs {verb}' and 'uninstall {verb}' manage it")
    if not manager.system and not (_LINGERING / getpass.getuser()).exists():
        click.echo(
            "it ends when you log out; to keep it, and start it with the computer:  loginctl enable-linger"
        )
    if verb == "master":
        click.echo("for other machines:  tpiedge token create")


@service.command()
@json_option
def status(as_json: bool) -> None:
    """Show the installed services, whether they run, and their last status."""
    found = {verb: _shown(manager, verb) for verb, manager in _installed().items()}
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    if not found:
        click.echo("no service is installed: 'tpiedge service install --help' shows how", err=True)
    for verb, one in found.items():
        click.echo(
            f"{verb} ({one['of']}, {one['enabled']}): {one['state']}, restarted {one['restarts']} times"
        )
        if one["says"]:
            click.echo(f"  {one['says']}")


def _first_words(manager: _Manager, verb: str) -> str:
    """Returns what a started service says, or "" after ten seconds. Raises UserError if it ended: a worker is ready
    before it joins."""
    deadline = time.monotonic() + 10.0
    while (now := _shown(manager, verb))["state"].startswith("active "):
        if now["says"] or time.monotonic() >= deadline:
            return now["says"]
        time.sleep(0.2)
    raise UserError(f"it is {now['state']}")


def _shown(manager: _Manager, verb: str) -> dict[str, str]:
    names = ("ActiveState", "SubState", "UnitFileState", "NRestarts", "StatusText")
    lines = manager.ask("show", manager.unit(verb).name, f"--property={','.join(names)}").splitlines()
    has = dict(line.split("=", 1) for line in lines if "=" in line)
    state, sub, enabled, restarts, says = (sanitised_line(has.get(name, ""), 200) for name in names)
    of = "the system" if manager.system else "this user"
    return {"of": of, "state": f"{state} ({sub})", "enabled": enabled, "restarts": restarts, "says": says}


@service.command()
@click.argument("verb", type=click.Choice(VERBS), required=False)
@click.option(
    "-n", "--lines", type=click.IntRange(0), default=50, show_default=True, help="Number of last lines."
)
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@json_option
@click.pass_context
def logs(ctx: click.Context, verb: str | None, lines: int, follow: bool, as_json: bool) -> None:
    """Show the log of a service, by journalctl."""
    manager, verb = _chosen(verb)
    shown = [*_journal(manager, verb), f"--lines={lines}", f"--output={'json' if as_json else 'short-iso'}"]
    try:
        ctx.exit(subprocess.call([*shown, *(["--follow"] if follow else [])]))
    except FileNotFoundError:
        raise UserError(f"this computer has no {shown[0]}: install it") from None


@service.command()
@click.argument("verb", type=click.Choice(VERBS), required=False)
def uninstall(verb: str | None) -> None:
    """Stop a service and remove it; models, weights and keys stay."""
    manager, verb = _chosen(verb)
    unit = manager.unit(verb)
    try:
        manager.change("disable", "--now", unit.name)
    except _NotDone:
        click.echo(f"{unit.name} still finishes requests; it ends by itself", err=True)
    manager.remove(unit)
    manager.change("daemon-reload")
    secret_file(verb).unlink(missing_ok=True)
    click.echo(f"{unit.name} is removed; models, weights and keys stay")


def _installed() -> dict[str, _Manager]:
    managers = (_Manager(system=True), _Manager(system=False))
    return {verb: one for verb in VERBS for one in managers if one.unit(verb).exists()}


def _chosen(verb: str | None) -> tuple[_Manager, str]:
    found = _installed()
    if verb is None and len(found) > 1:
        raise UserError(f"say which one: {' or '.join(found)}")
    chosen = verb or next(iter(found), "worker")
    if chosen not in found:
        raise UserError(f"no such service is installed: type 'tpiedge service install {chosen}'")
    return found[chosen], chosen


def _journal(manager: _Manager, verb: str) -> list[str]:
    kind = "unit" if manager.system else "user-unit"
    return ["journalctl", "--no-pager", "--quiet", f"--{kind}=tpiedge-{verb}"]


def _last_words(manager: _Manager, verb: str) -> str:
    """Returns the last line of the service's last run, or how to see its log."""
    try:
        run = manager.ask("show", manager.unit(verb).name, "--property=InvocationID", "--value").strip()
        only = ["--identifier=tpiedge", f"_SYSTEMD_INVOCATION_ID={run}", "--lines=1", "--output=cat"]
        words = _run([*_journal(manager, verb), *only])
    except UserError as error:
        words = f"its log cannot be read: {error}"
    return (
        sanitised_line(words.strip().removeprefix("tpiedge: "), 300) or f"see 'tpiedge service logs {verb}'"
    )
