"""Settings that do not come from the command line: environment variables and files, each value with its origin."""
