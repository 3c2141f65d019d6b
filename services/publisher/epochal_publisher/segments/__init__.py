"""The segments that a publisher hosts: machines, logs on disk, and the lease that gives the right to them."""
