"""Tasks: pure generators of networks and batches, one file each."""
