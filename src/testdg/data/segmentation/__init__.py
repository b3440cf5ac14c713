"""Pictures with label maps: readers of the layouts that people have."""
