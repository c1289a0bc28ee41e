"""Writes OpenAI's completions and chats, whole or in chunks."""

from collections.abc import Sequence
from dataclasses import replace

from tpiedge.api.errors import ApiError
from tpiedge.api.formats import AnswerFormat, AnswerHead, Json, event
from tpiedge.api.transcript import SpokenChoice, TextPiece, TokenScores, Transcript, call_id, joined
from tpiedge.model.call_reader import CallArguments, CallBegun, CallEnded
from tpiedge.model.speech import SpokenText
from tpiedge.wire.control import Token

_DONE = b"data: [DONE]\n\n"


class OpenAIFormat(AnswerFormat):
    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._reply = head.reply
        self._chat = head.reply.format == "chat"
        self._scores = TokenScores(head.tokenizer, head.reply.logprobs)
        self._speech = [SpokenChoice(head.reply.speech) for _ in head.prompts]

    def opening(self) -> Sequence[bytes]:
        shown: Json = {"delta": {"role": "assistant", "content": ""}}
        choices = range(len(self.head.prompts) if self._chat else 0)
        return [event(self._chunk([self._choice(choice, shown, None)])) for choice in choices]

    def frames(self, choice: int, piece: TextPiece) -> Sequence[bytes]:
        if not self._chat:
            return [event(self._chunk([self._choice(choice, {"text": piece.text}, piece)]))]
        said = self._speech[choice].take(piece)
        deltas = [self._delta(choice, one) for one in said if not isinstance(one, CallEnded)]
        told = self._reply.logprobs is not None or self._reply.token_ids
        if not deltas and piece.last is None and not told:
            return ()
        # The first chunk has the tokens, the last one the ending.
        part, shown = replace(piece, last=None), list[Json]()
        for delta in deltas or [{}]:
            shown.append(self._choice(choice, {"delta": delta}, part))
            part = TextPiece("", (), ())
        shown[-1]["finish_reason"] = self._ending(choice, piece)
        return [event(self._chunk([one])) for one in shown]

    def closing(self, transcripts: Sequence[Transcript]) -> Sequence[bytes]:
        if not self._reply.include_usage:
            return [_DONE]
        return [event(self._chunk([]) | {"usage": self._usage(transcripts)}), _DONE]

    def whole(self, pieces: Sequence[Sequence[TextPiece]], transcripts: Sequence[Transcript]) -> Json:
        choices = [self._whole_choice(number, parts) for number, parts in enumerate(pieces)]
        return self._object(choices) | {"usage": self._usage(transcripts)}

    def failure(self, error: ApiError, tokens: int) -> Json:
        return error.body() | {"id": self.head.id, "tokens": tokens}

    def _whole_choice(self, number: int, pieces: Sequence[TextPiece]) -> Json:
        text = "".join(piece.text for piece in pieces)
        all_tokens = tuple(token for piece in pieces for token in piece.tokens)
        offsets = tuple(offset for piece in pieces for offset in piece.offsets)
        piece = TextPiece(text, all_tokens, offsets, pieces[-1].last)
        if not self._chat:
            return self._choice(number, {"text": text}, piece)
        message = self._message(number, self._speech[number].take_whole(piece))
        return self._choice(number, {"message": message}, replace(piece, last=self._ending(number, piece)))

    def _delta(self, choice: int, said: SpokenText | CallBegun | CallArguments) -> Json:
        match said:
            case SpokenText(text=text, thought=thought):
                return {"reasoning_content" if thought else "content": text}
            case CallBegun(index=index, name=name):
                call = self._call(choice, index, name)
            case CallArguments(text=text):
                call = {"function": {"arguments": text}}
        if self._reply.functions:
            return {"function_call": call["function"]}
        return {"tool_calls": [{"index": said.index} | call]}

    def _message(self, choice: int, said: Sequence[SpokenText | CallEnded]) -> Json:
        ended = [one for one in said if isinstance(one, CallEnded)]
        calls = [self._call(choice, one.index, one.name, one.arguments) for one in ended]
        content = joined(said, thought=False)
        message: Json = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if self._reply.speech.thinking:
            message["reasoning_content"] = joined(said, thought=True) or None
        if calls and self._reply.functions:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return message

    def _ending(self, choice: int, piece: TextPiece) -> str | None:
        last = self._speech[choice].ending(piece)
        return "function_call" if last == "tool_calls" and self._reply.functions else last

    def _call(self, choice: int, index: int, name: str, arguments: str = "") -> Json:
        function = {"name": name, "arguments": arguments}
        return {"id": call_id(self.head.id, choice, index), "type": "function", "function": function}

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = self._object(choices, ".chunk")
        return chunk | {"usage": None} if self._reply.include_usage else chunk

    def _object(self, choices: list[Json], part: str = "") -> Json:
        head, kind = self.head, f"chat.completion{part}" if self._chat else "text_completion"
        named: Json = {"id": head.id, "object": kind, "created": head.created, "model": head.model}
        return named | {"choices": choices}

    def _choice(self, number: int, shown: Json, piece: TextPiece | None) -> Json:
        choice: Json = {"index": number, **shown, "logprobs": None}
        choice["finish_reason"] = piece.last if piece else None
        if piece is not None and self._reply.logprobs is not None:
            if self._chat:
                choice["logprobs"] = {"content": self._scores.told(piece.tokens), "refusal": None}
            else:
                choice["logprobs"] = self._text_scores(piece)
        if piece is not None and self._reply.token_ids:
            choice["token_ids"] = [token.token for token in piece.tokens]
        return choice

    def _usage(self, transcripts: Sequence[Transcript]) -> Json:
        """Counts tokens and steps; a stop string does not wait for rank 0's numbers, which are left out then. A prompt
        counts once, however many choices it has."""
        prompt_tokens, tokens = self.head.prompt_tokens, sum(one.count for one in transcripts)
        usage: Json = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
        usage["total_tokens"] = prompt_tokens + tokens
        ends = [one.finished for one in transcripts if one.finished is not None]
        # Steps are unknown if tokens came from several epochs.
        if len(ends) == len(transcripts) and all(end.steps or not end.tokens for end in ends):
            backwards = zip(reversed(self.head.prompts), reversed(ends), strict=True)
            cached = {prompt: end.cached_tokens for prompt, end in backwards}
            usage["prompt_tokens_details"] = {"cached_tokens": sum(cached.values())}
            steps = sum(end.steps for end in ends)
            if steps:
                usage["tokens_per_step"] = round(sum(end.tokens for end in ends) / steps, 2)
        pauses, paused_s = sum(one.pauses for one in transcripts), sum(one.paused_s for one in transcripts)
        if pauses:
            usage["pauses"] = {"count": pauses, "seconds": round(paused_s, 3)}
        return usage

    def _text_scores(self, piece: TextPiece) -> Json:
        return {
            "tokens": [self._scores.text(token.token) for token in piece.tokens],
            "token_logprobs": [self._scores.own(token) for token in piece.tokens],
            "top_logprobs": [self._top(token) for token in piece.tokens] if self._reply.logprobs else None,
            "text_offset": list(piece.offsets),
        }

    def _top(self, token: Token) -> dict[str, float] | None:
        """Returns the score of each text, that of its likeliest token; None for a prompt's first token."""
        if not token.logprobs:
            return None
        found: dict[str, float] = {}
        for other, score in token.logprobs[: self._reply.logprobs]:
            found.setdefault(self._scores.text(other), score)
        return found
