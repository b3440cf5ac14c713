"""VDP: `prompts` are patches of pixels, `jumps` finds new domains, `homeostasis` holds on to old ones."""
