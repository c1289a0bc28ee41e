"""`tpiedge doctor`: looks for problems; changes nothing. `computer` checks machine and software. `network` checks the
network and a master."""
