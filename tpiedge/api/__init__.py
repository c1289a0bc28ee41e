"""The APIs of OpenAI, Anthropic and Ollama over HTTP, for the cluster of a `Service` (`tpiedge/local/service.py`).

`server` routes; `connection` limits connections; `guard` admits requests by `keys`. `completions` answers prompts;
`lookups` describes the model; `admin` manages workers, and shows the `cluster` and a step's `timeline`. `metrics`
writes counters; `page` sends files.

`intake` bounds requests by `limits`, `body` parses them, and `fields` checks them by the table of `openai`,
`embeddings`, `responses`, `anthropic` or `ollama`. `messages` and `tools` read parts of requests; `answer_grammar`,
`call_grammars` and `grammar_schema` make grammars. `parsed` has the result; `openapi` shows the tables.

`answering` sends answers: `transcript` makes text of a log's events (`tpiedge/answers/`); the API's module frames the
text by `formats`. `errors` have each API's shape. `records` survive servers.
"""
