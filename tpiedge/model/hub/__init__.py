"""Models of the hub: `client` pulls (`listing`, `transfer`), `cache` finds what was pulled without a network."""
