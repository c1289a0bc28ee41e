"""The OpenAI API over HTTP. It knows the cluster as a `Service` and starts no thread of its own for a request.

`server` listens (`listener` counts connections, `connection` cuts slow clients), `guard` decides who may call, by
`keys` and `origins`, `app` routes: `completions` answers, `texts` counts tokens, `admin` manages workers, `metrics`
counts. A request: `body` reads it, `fields` and `schema` check it, `vain_fields` says what has no effect, `messages`
and `encoding` make token ids of it, `sampling` its sampling, `intake` limits it by `limits`. Its answer: `answering`
sends what `stream_bridge` brings from the cluster's iterator, `transcript` makes text of tokens, `replies` makes JSON
of it. Where answers are to survive the server, `kept_answers` outlive their connections, and a `record_folder` has
their `records`. `errors` are OpenAI's; `service` is what a cluster must offer.
"""
