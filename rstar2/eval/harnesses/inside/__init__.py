"""Programs that run in the environments of harnesses. They import only the harness and the standard library."""
