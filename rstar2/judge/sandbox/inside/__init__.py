"""The code that runs inside the jail, in the interpreter that programs get.

Modules in `inside` import only each other and the standard library. Code in `inside` imports as few modules as
possible, because every program inherits the memory of all loaded modules.
"""
