"""REM: `attention` reads what the class token attends to, and leaves such patches out."""
