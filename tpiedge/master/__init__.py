"""Membership, plans, sessions and the request queue of a cluster. No torch. Other threads read `status` only."""
