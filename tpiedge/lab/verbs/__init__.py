"""The commands bench, eval, testbed and trace."""
