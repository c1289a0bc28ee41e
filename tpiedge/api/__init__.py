"""The API of OpenAI over HTTP, and those of Anthropic and Ollama. It knows the cluster as a `Service` and starts no
thread of its own for a request.

`server` listens (`listener` counts connections, `connection` cuts slow clients, `bounded_http` those that send very
many tiny parts), `guard` decides who may call, by `keys` and `origins`, and who it is, by way of `proxies`, `app`
routes: `completions` answers, `texts` counts tokens, `model_cards` and `ollama` say what clients ask about models,
`admin` manages workers and shows the `cluster`, with the `timeline` of a step, `metrics` counts. A request: `body`
reads it, `bounded_json` parses it, `fields` checks each field of it, by way of `completion_request`, `chat_request` or
`embedding_request`; of other APIs `responses_request`, `anthropic_request` and `ollama_request` make a chat, by
`translation`, with what `namespaces` call a tool; `azure` gives paths of its clients their usual names. `vain_fields`
says what has no effect, `messages`, with the texts of `documents`, and `encoding` make token ids, `sampling` says how
they go on, `answer_grammar` in which form, `tools` what may be called (`old_functions` by their older name),
`call_grammars` how, `asked` is what comes of it, `intake` limits it by `limits`, with `fairness` among clients.
`grammar_schema` makes of a client's JSON schema what a grammar can hold, by what `schema_words`, `schema_references`,
`schema_patterns` and `disjoint_schemas` know of such schemas.

Its answer: `answer_forms` lists the forms, `deliveries` brings it, `answering` sends what its reader finds in the log
(`tpiedge/answers/`), `transcript` makes text of tokens, after a `prompt_echo`, with `token_scores`, and one of the
`formats` makes `frames` of it and of what is `spoken` in it: `openai_format`, `responses_format`, `anthropic_format`,
`ollama_format` or `embedding_format`. `errors` are OpenAI's, which others see in their own `error_shapes`. Answers
outlive their connections until an `acknowledgement`. Where they are to survive the server, a `record_folder` has their
`records`, each in a `record_file`, with its age by `moments`.
`service` is what a cluster must offer.

`openapi` with `openapi_fields`, `openapi_forms`, `openapi_others` and `openapi_parts` describes the routes for clients.
`page` is what a browser shows, and has nothing to do with the others.
"""
