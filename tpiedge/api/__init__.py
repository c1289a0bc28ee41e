"""The APIs of OpenAI, Anthropic and Ollama over HTTP, for the cluster of a `service`.

`server` routes; `connection` limits connections; `guard` admits requests, by `keys`. `completions` answers prompts,
`lookups` questions; `admin` manages workers and shows the `cluster` with the `timeline` of a step; `metrics` and `page`
serve theirs.

A request: `intake` limits it by `limits`, `body` parses it, and `fields` check it by the table of its API's module:
`openai_request`, `embeddings`, `responses`, `anthropic` or `ollama`. `messages` and `tools` read its parts,
and `answer_grammar`, `call_grammars` and `grammar_schema` make its grammar; `asked` is the result, and `openapi` shows
the tables.

Its answer: `answering` sends the events of the log (`tpiedge/answers/`), which `transcript` makes text, tool calls and
reasoning, and one of the `formats`, such as `openai_format`, frames. `errors` have the shapes of each API. `records`
survive the server.
"""
