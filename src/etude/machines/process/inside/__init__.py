"""What runs inside bubblewrap: the zygote, the machines forked from it and the programs forked from those.

Invariant: imports the standard library only, because the machine's interpreter has nothing else.
"""
