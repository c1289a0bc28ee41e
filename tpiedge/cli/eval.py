"""`tpiedge eval`: how good a model is at a precision, in numbers."""

import click

from tpiedge.cli.eval_agreement import agreement
from tpiedge.cli.eval_perplexity import perplexity
from tpiedge.cli.listing import ListingGroup

__all__ = ["evaluate"]


@click.group("eval", cls=ListingGroup)
def evaluate() -> None:
    """Measure a model's quality with a text."""


evaluate.add_command(perplexity)
evaluate.add_command(agreement)
