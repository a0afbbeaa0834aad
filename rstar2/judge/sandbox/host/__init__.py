"""Resources of the host that a sandbox uses: control groups, user ids, and a process that removes folders."""
