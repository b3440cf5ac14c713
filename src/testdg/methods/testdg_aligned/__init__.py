"""TestDG aligned: `lean` saves memory in its backward pass."""
