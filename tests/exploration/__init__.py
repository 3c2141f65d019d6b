"""Every state that small configurations can reach, one by one: nothing wrong in any, and a way on from each."""
