"""`tpiedge eval`: how good a model is at a precision, in numbers."""

import click

from tpiedge.cli.listing import ListingGroup
from tpiedge.lab.verbs.eval_agreement import agreement
from tpiedge.lab.verbs.eval_perplexity import perplexity


@click.group("eval", cls=ListingGroup)
def evaluate() -> None:
    """Measure a model's quality with a text."""


evaluate.add_command(perplexity)
evaluate.add_command(agreement)
