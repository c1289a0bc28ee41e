"""Testbeds whose devices are containers.

`plan` (pure), `engine` (docker), `testbed` (up, down, links), `backend` (as the commands want it); `agent` runs beside
the switch; `terminal` carries a command's input and output.
"""
