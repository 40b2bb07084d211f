"""This computer and its other processes: locks, compiler jobs, trust in files, child processes."""
