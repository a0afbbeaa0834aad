"""What a training run leaves to be looked at: where its time went, and rollouts kept as traces."""
