"""The OpenAI API over HTTP. It knows the cluster as a `Service` and starts no thread of its own for a request.

`server` listens (`listener` counts connections, `connection` cuts slow clients), `guard` decides who may call, by
`keys` and `origins`, `app` routes: `completions` answers, `texts` counts tokens, `admin` manages workers and shows the
`cluster`, `metrics` counts. A request: `body` reads it, `fields` checks each field of it, by way of
`completion_request`, `chat_request` or `embedding_request`, `vain_fields` says what has no effect, `messages` and
`encoding` make token ids of it, `sampling` its sampling, `asked` is what comes of it, `intake` limits it by `limits`.
Its answer: `deliveries` brings it, `answering` sends what `stream_bridge` brings from the cluster's iterators,
`transcript` makes text of tokens, after a `prompt_echo`, and one of the `formats`, `openai_format` or
`embedding_format`, makes `frames` of it. Where answers are to survive the server, `kept_answers` outlive their
connections, and a `record_folder` has their `records`. `errors` are OpenAI's; `service` is what a cluster must offer.
`page` is what a browser shows, and has nothing to do with the others.
"""
