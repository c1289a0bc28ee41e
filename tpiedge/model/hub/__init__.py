"""Models of the hub: `client` pulls (`listing`), `cache` finds what was pulled without a network."""
