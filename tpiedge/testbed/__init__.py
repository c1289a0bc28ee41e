"""Several devices on one Linux computer: namespaces or containers, links with latency, rate, jitter and loss."""
