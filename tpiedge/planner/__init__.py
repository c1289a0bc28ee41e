"""Who computes what: pure functions from facts to a plan, or to a refusal that explains itself."""
