"""`tpiedge doctor`: what this computer and its network would make difficult. Looks only; changes nothing.

`computer` has what a check says and those of the machine and its software, `network` those of the network and of a
master.
"""
