"""Public fakes: a manual clock, a cluster inside one process."""
