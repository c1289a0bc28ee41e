"""An interactive chat with a local cluster."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

from tpiedge.cli.conversation import ANSWER_TOKENS, SETTINGS, ChatMessage, Settings, Spoken, converse
from tpiedge.cli.options import Ending, is_default, new_seed
from tpiedge.errors import ContextFull
from tpiedge.local.answer import collect
from tpiedge.local.cluster import LocalCluster
from tpiedge.local.launch import Layout, launch, plan_cluster
from tpiedge.local.prepare import PreparedModel
from tpiedge.local.usual_context import chosen_context
from tpiedge.wire.requests import GenerationRequest, Sampling


def chat(
    model: PreparedModel,
    layout: Layout,
    context: int | None,
    ending: Ending,
    sampling: Sampling,
    system: str | None,
    traces: tuple[Path, ...] = (),
) -> None:
    """Start a cluster and answer messages from standard input until its end. `traces` as in ClusterSpec."""
    _ = model.template  # a model without one is refused before anything starts
    capacity = chosen_context(model, layout, context)
    plan = plan_cluster(model, layout, capacity)
    with launch(model, layout, plan, capacity, traces) as cluster:
        converse(_LocalSpeaker(cluster, model, capacity, ending, sampling), system)


class _LocalSpeaker:
    """A `Speaker`. The KV cache keeps the common prefix of the turns."""

    def __init__(
        self,
        cluster: LocalCluster,
        model: PreparedModel,
        capacity: int,
        ending: Ending,
        sampling: Sampling,
    ) -> None:
        self.name = model.name
        self.settings: Settings = {
            **{name: getattr(sampling, name) for name in SETTINGS if name not in ("max_tokens", "seed")},
            **({} if is_default("seed") else {"seed": sampling.seed}),
            "max_tokens": ending.max_tokens or ANSWER_TOKENS,
        }
        self._cluster = cluster
        self._model = model
        self._capacity = capacity
        self._ending = ending
        self._sampling = sampling
        self._turns = count(1)

    def speak(self, messages: list[ChatMessage], settings: Settings, show: Callable[[str], None]) -> Spoken:
        prompt = self._model.message_ids(messages)
        if len(prompt) >= self._capacity:
            raise ContextFull(
                f"the conversation has {len(prompt)} tokens, the context {self._capacity}: /clear it, or start "
                "again with a larger --context"
            )
        sampling, tokens = self._set(settings)
        request = GenerationRequest(
            id=f"turn-{next(self._turns)}",
            prompt_ids=prompt,
            max_tokens=min(tokens, self._capacity - len(prompt)),
            sampling=sampling,
            stop_ids=self._model.end_ids,
            ignore_eos=self._ending.ignore_eos,
            keep_prefix=True,
        )
        answer = collect(self._cluster, request, self._model.tokenizer, self._ending.strings, show)
        return Spoken(answer.text, answer.finish_reason)

    def _set(self, settings: Settings) -> tuple[Sampling, int]:
        """How tokens are drawn, and how many at most, after what /set changed."""
        values = {"seed": new_seed(), **self.settings, **settings}
        tokens = int(values.pop("max_tokens"))
        return replace(self._sampling, **values), tokens  # type: ignore[arg-type]  # /set keeps whole numbers whole
