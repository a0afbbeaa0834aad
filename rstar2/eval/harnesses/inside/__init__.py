"""What runs inside the environments of harnesses: it imports the harness and the standard library, nothing of ours."""
