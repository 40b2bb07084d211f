"""What can be asked for: modules, and the kernels and deferred functions of host parts."""
