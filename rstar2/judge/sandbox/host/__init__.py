"""What a sandbox takes from the machine: control groups, processors, users, and the time to remove folders."""
