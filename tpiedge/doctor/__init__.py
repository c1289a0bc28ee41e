"""`tpiedge doctor`: what this computer and its network would make difficult. Looks only; changes nothing.

`finding` is what a check says; `machine`, `software`, `network` and `reach` hold the checks; `arithmetic` runs in a
process of its own and loads torch.
"""
