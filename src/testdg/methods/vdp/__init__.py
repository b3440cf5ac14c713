"""VDP: `prompts` are patches of pixels, `jumps` finds new domains, `homeostasis` holds on to old ones."""

from testdg.methods.vdp.method import VDP

__all__ = ["VDP"]
