"""The code that runs inside the jail, in the interpreter that programs get.

It imports itself and the standard library only, and of that no more than it must: every program carries what
a zygote has loaded.
"""
