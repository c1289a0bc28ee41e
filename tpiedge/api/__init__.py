"""The APIs of OpenAI, Anthropic and Ollama over HTTP.

`server` routes requests. `connection` limits connections. `guard` checks `keys`. `completions` answers requests.
`lookups` describes models. `admin` manages workers, and shows the `cluster` and a step's `timeline`. `metrics` writes
counters. `page` sends files to browsers, `install` sends files to other machines. `http_server` runs `server` and
`install`.

`intake` reads requests within `limits`. `body` parses JSON. `fields` checks JSON by tables. `openai`, `embeddings`,
`responses`, `anthropic` and `ollama` have the tables. `messages` and `tools` read parts. `answer_grammar`,
`call_grammars` and `grammar_schema` make grammars. `parsed` has the result. `openapi` and `docs` show the tables.

`answering` sends answers. `transcript` makes texts. `formats` encodes answers. `errors` has each API's errors.
`records` keeps answers for the next server."""
