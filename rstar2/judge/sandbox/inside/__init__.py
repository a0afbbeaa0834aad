"""The code that runs inside the jail, in the interpreter that programs get.

It imports only itself and the standard library. It imports as little as possible, because every program inherits the
memory of all loaded modules.
"""
