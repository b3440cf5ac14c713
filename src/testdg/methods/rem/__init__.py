"""REM: `attention` reads what the class token attends to, `ranking` is the loss over views with ever fewer tokens."""
