"""Public fakes for tests: a manual `clock`, a `cluster` of threads, a `service` for the HTTP API, and endpoints
`inprocess`."""
