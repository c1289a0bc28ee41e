"""The parts of tools/record_terminal.py."""
