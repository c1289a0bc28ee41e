"""The parts of `python -m tools.nemesis`.

`stage` is a cluster on machines that can be broken; `scene` draws who is hit, and mends later; the faults are in
`of_processes`, `of_links`, `of_machines` and `of_pages`, and `nemesis` strikes. `readers` ask
meanwhile and compare, `forms` are what they ask for, and `breaking` breaks their connections; `holdings` is
what is held before and afterwards; `figures` are what is printed.
"""
