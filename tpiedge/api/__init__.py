"""The APIs of OpenAI, Anthropic and Ollama over HTTP.

`server` routes; `connection` limits connections; `guard` admits requests by `keys`. `completions` answers prompts;
`lookups` describes the model; `admin` manages workers, and shows the `cluster` and a step's `timeline`. `metrics`
writes counters; `page` sends files to browsers, `install` to other machines. `http_server` is under `server` and
`install`.

`intake` bounds requests by `limits`, `body` parses them, and `fields` checks them by the table of `openai`,
`embeddings`, `responses`, `anthropic` or `ollama`. `messages` and `tools` read parts; `answer_grammar`, `call_grammars`
and `grammar_schema` make grammars. `parsed` has the result; `openapi`, `docs` show the tables.

`answering` sends answers: `transcript` makes text, `formats` frame it. `errors` has each API's errors. `records` keep
answers for the next server."""
