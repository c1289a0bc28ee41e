"""`tpiedge doctor`: what this computer and its network would make difficult. Looks only; changes nothing."""
