"""The campaign against runs: kills, second writers, damage, wild flags, bad data, misuse and full disks.

``python -m hostile`` (with this folder's parent in PYTHONPATH) runs it, ``make hostile`` too. A case is a function of
an empty folder and a shell, and returns a verdict; each kind of cases has a file, which makes them from a seed.
"""
