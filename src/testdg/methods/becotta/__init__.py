"""BECoTTA: `experts` stand behind the blocks of a transformer."""
