"""How well a model predicts a text, computed by a cluster as it serves."""

import math
from dataclasses import dataclass

from tpiedge.errors import InternalError, UserError
from tpiedge.lab.evaluation.text import EvalText, Window
from tpiedge.local.cluster import LocalCluster
from tpiedge.progress import ByteProgress
from tpiedge.wire.control import PromptScores
from tpiedge.wire.requests import GenerationRequest

_MOST_NATS = 700.0  # whose exponential is still a float


@dataclass(frozen=True)
class Likelihood:
    """How likely a text is: `nats` is the sum of -log p over its scored tokens.

    Raises UserError where it is no number.
    """

    nats: float
    tokens: int
    nbytes: int

    def __post_init__(self) -> None:
        if not self.nats / self.tokens < _MOST_NATS:
            raise UserError(
                f"the model gives the text {self.nats} nats, no perplexity: check the files of the model"
            )

    def described(self) -> dict[str, float]:
        """The figures for JSON."""
        mean = self.nats / self.tokens
        return {
            "nats_per_token": mean,
            "perplexity": math.exp(mean),
            "bits_per_byte": self.nats / math.log(2) / self.nbytes,
        }


def likelihood_of(cluster: LocalCluster, text: EvalText) -> Likelihood:
    """Sends one request for each window and sums the scores of its prompt. Blocks until all are answered."""
    progress = ByteProgress("scoring")
    nats, done = 0.0, 0
    try:
        for number, window in enumerate(text.windows):
            nats -= math.fsum(_scores(cluster, f"eval-{number}", window))
            done += window.scored
            progress(text.scored_bytes * done // text.scored, text.scored_bytes)
    finally:
        progress.finish(text.scored_bytes * done // text.scored)
    return Likelihood(nats, text.scored, text.scored_bytes)


def _scores(cluster: LocalCluster, name: str, window: Window) -> list[float]:
    """Log probabilities of the window's scored tokens."""
    request = GenerationRequest(name, window.ids, max_tokens=1, ignore_eos=True, prompt_scores=True)
    found: list[float] = []
    for event in cluster.generate(request):
        if isinstance(event, PromptScores):
            found += event.scores
    if len(found) != len(window.ids) - 1:
        raise InternalError(f"{len(found)} scores for a text of {len(window.ids)} tokens: report it")
    return found[window.first - 1 :]
