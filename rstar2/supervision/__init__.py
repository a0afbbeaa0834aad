"""Supervisors, which start, watch and restart the processes of a judge or a model server, with logs and state files."""
