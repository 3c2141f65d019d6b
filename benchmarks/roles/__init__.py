"""What the measured processes do, one function a role; `benchmarks/role.py` runs one of them."""
