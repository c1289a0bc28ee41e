"""The APIs of OpenAI, Anthropic and Ollama over HTTP.

`server` routes requests, `connection` limits connections, `guard` checks `keys`. `completions` answers requests,
`lookups` describes models, `admin` manages workers and shows the `cluster` and a step's `timeline`. `metrics` writes
counters. `page` sends files to browsers, `install` to other machines. `server` and `install` run an `http_server`.

`intake` reads requests within `limits`. `body` parses JSON. `fields` checks it by the tables of `openai`, `embeddings`,
`responses`, `anthropic` and `ollama`. `messages` and `tools` read parts. `answer_grammar`, `call_grammars` and
`grammar_schema` make grammars. `parsed` has the result. `openapi` and `docs` show the tables.

`answering` sends answers, whose text `transcript` makes and whose bytes `formats` make. `errors` has each API's errors.
`records` keeps answers for the next server."""
