"""DePT: `prompts` are the tokens that every stage gets, `losses` what they learn by."""
