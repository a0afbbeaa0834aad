"""The code that runs inside the jail, in the interpreter that programs get.

The code in `inside` imports only itself and the standard library. The code imports as little as possible, because every
program inherits the memory of all loaded modules.
"""
