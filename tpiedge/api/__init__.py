"""The API of OpenAI over HTTP, and those of Anthropic and Ollama. It knows the cluster as a `Service` and starts no
thread of its own for a request.

`server` listens (`connection` counts connections, cuts slow clients and has clients take turns) and routes; `guard`
decides who may call, by `keys`, and who it is. `completions` answers, `lookups` say what clients ask about the model
and about texts, `admin` manages workers and shows the `cluster`, with the `timeline` of a step, `metrics` counts.

A request: `intake` limits it by `limits`, `body` reads and parses it, and `fields` check it by the table of its form,
which is in the module that reads the form: `openai_request` and `embeddings`; of other APIs `responses`, `anthropic`
and `ollama`, which make a chat of it. `answer_grammar` says in which form the answer is, `messages` what was said,
`tools` what may be called, `call_grammars` how, and `grammar_schema` makes of a client's JSON schema what a grammar
can hold. `asked` is what comes of it. `openapi` shows the tables to clients.

Its answer: `completions` lists the forms, `answering` sends what its reader finds in the log (`tpiedge/answers/`),
`transcript` makes text, calls and thoughts of tokens, and one of the `formats` makes events of them: `openai_format`,
or that in `responses`, `anthropic`, `ollama` or `embeddings`. `errors` are OpenAI's, and those of others. `records`
have what is to survive the server. `service` is what a cluster must offer.
`page` is what a browser shows, and has nothing to do with the others.
"""
