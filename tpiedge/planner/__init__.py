"""Plans as pure functions of facts.

`needs`: what a node needs for a share; `arithmetic`: in which precision; `fractions`: each node's part by speed, memory
and disk; `solve`: whole units for one computer; `prediction`: times; `capacity`: the machines of a cluster, and why;
`network`: all-reduces and links; `carriage`: keys and values that travel between plans."""
