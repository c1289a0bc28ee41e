"""The APIs of OpenAI, Anthropic and Ollama over HTTP, for the cluster of a
`Service` (`tpiedge/local/service.py`).

`server` routes; `connection` limits connections; `guard` admits requests, by `keys`. `completions` answers prompts,
`lookups` questions; `admin` manages workers and shows the `cluster` and the `timeline` of a step. `metrics` and `page`
serve theirs.

A request: `intake` limits it by `limits`, `body` parses it, and `fields` check it by the table of `openai`,
`embeddings`, `responses`, `anthropic` or `ollama`. `messages` and `tools` read its parts; `answer_grammar`,
`call_grammars` and `grammar_schema` make its grammar. `asked` is the result; `openapi` shows the tables.

Its answer: `answering` sends the log's events (`tpiedge/answers/`), which `transcript` makes text and the API's module
frames by `formats`. `errors` have their shapes. `records` survive it.
"""
