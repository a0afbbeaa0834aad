"""What VERL needs to train without a GPU: an engine that generates, a platform, micro-batches."""
