"""DPCore: `coreset` holds prompts with the statistics of their domains, `method` mixes, refines and adds them."""
