"""Programs that run in the environments of harnesses.

These programs import only the harness and the standard library.
"""
