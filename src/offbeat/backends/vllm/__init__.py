"""vLLM behind the `Generator` port. Runs in the Python of vLLM's own environment and imports nothing that it lacks."""
