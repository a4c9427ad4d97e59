"""The promises under fire: real workers, fronts, clients and databases, hit at random for as long as one likes.

`make torture DURATION=600 SEED=7 ENGINE=postgres`, or `python -m tests.torture --help`. The seed decides what is asked,
which faults come and what they hit; when they hit is the machine's affair, so the same seed is the same attack, not the
same run.
"""
