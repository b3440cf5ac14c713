"""DePT: `prompts` has the tokens of every stage, `method` their training."""
