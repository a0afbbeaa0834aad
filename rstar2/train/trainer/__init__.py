"""What is known of VERL's trainer without importing VERL: settings, checkpoints, disk space, and causes of failure."""
