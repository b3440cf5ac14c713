"""DePT: `prompts` are the tokens that every stage gets, `method` what they learn by."""
