"""The verbs bench (a file for each of its verbs), eval, testbed and trace; `flags` has shared flags."""
