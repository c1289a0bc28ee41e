"""The command `tpiedge bench`. Numbers of different runs cannot be compared."""

import click

from tpiedge.cli.listing import ListingGroup
from tpiedge.lab.verbs.bench_allreduce import allreduce
from tpiedge.lab.verbs.bench_context import context
from tpiedge.lab.verbs.bench_decode import decode
from tpiedge.lab.verbs.bench_kernels import kernels
from tpiedge.lab.verbs.bench_memory import memory
from tpiedge.lab.verbs.bench_serve import serve
from tpiedge.lab.verbs.bench_speed import speed


class _SpeedByDefault(ListingGroup):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["speed"])


@click.group(cls=_SpeedByDefault)
def bench() -> None:
    """Measure this computer; without a command, its decode speed in about 20 seconds."""


bench.add_command(allreduce)
bench.add_command(context)
bench.add_command(decode)
bench.add_command(kernels)
bench.add_command(memory)
bench.add_command(serve)
bench.add_command(speed)
