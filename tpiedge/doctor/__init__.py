"""`tpiedge doctor`: looks for problems of this computer and its network; changes nothing.

`computer` has findings and the checks of the machine and its software, `network` the checks of the network and of a
master.
"""
