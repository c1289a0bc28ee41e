"""Recording what real clients send, for `tools/record_clients.py`.

`catalogue` lists the clients, `install` puts each into a folder, `recorder` is the server that writes their requests
down, and `answers` says what they expect to hear. Each file of `drivers` uses one client in the ways that people do;
`drivers/using.py` and `drivers/using.mjs` are what these share.
"""
