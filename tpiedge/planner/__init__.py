"""Makes plans by pure functions of facts."""
