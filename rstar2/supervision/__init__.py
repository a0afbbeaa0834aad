"""What keeps processes running, for the judge and for servers of models: their supervisors, logs and state files."""
