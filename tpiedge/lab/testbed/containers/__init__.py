"""Testbeds whose devices are containers.

`plan` (pure), `engine` (docker), `testbed` (up, down, links), `backend` (as the commands want it); `agent` runs beside
the switch; `stream` and `terminal` carry a command's input and output.
"""
