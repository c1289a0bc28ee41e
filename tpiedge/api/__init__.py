"""The API of OpenAI over HTTP, and those of Anthropic and Ollama. It knows the cluster as a `Service` and starts no
thread of its own for a request.

`server` listens (`connection` counts connections, cuts slow clients and has clients take turns), `guard` decides who
may call, by `keys` and `origins`, and who it is, by way of `proxies`, `app` routes: `completions` answers, `texts`
counts tokens, `model_cards` say what clients ask about the model, `admin` manages workers and shows the `cluster`, with
the `timeline` of a step, `metrics` counts.

A request: `intake` limits it by `limits`, `body` reads and parses it, and `fields` are
checked by one of the `tables`, which is in the module that reads the form: `completion_request`, `chat_request` and
`embeddings`, with `answer_fields` that several have; of other APIs `responses_request`, `anthropic` and `ollama`, which
make a chat of it. `answer_grammar` says in which form the answer is, `messages` what was said, `tools` what
may be called, `call_grammars` how, and `grammar_schema` makes of a client's JSON schema what a grammar can hold.
`asked` is what comes of it. `openapi` shows the tables to clients.

Its answer: `answer_forms` lists the forms, `answering` sends what its reader finds in the log (`tpiedge/answers/`),
`transcript` makes text of tokens, and one of the `formats` makes events of it and of what is `spoken` in it:
`openai_format`, `responses_format`, or that in `anthropic`, `ollama` or `embeddings`. `errors` are OpenAI's, and those
of others. Where answers are to survive the server, a `record_folder` has their `records`. `service` is what a cluster
must offer.
`page` is what a browser shows, and has nothing to do with the others.
"""
