"""FOA: `evolution` is CMA-ES with a state of tensors, `fitness` measures class tokens, `method` puts them together."""
