"""What a training run leaves to be looked at: curves, where its time went, and rollouts kept as traces."""
