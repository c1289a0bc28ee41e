"""What tools/record_terminal.py is made of."""
