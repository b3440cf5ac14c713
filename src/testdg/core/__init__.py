"""The contract of methods: adapters, their state and settings, and the guard around them."""
