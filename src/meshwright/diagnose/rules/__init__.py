"""One rule is two files here: NAME.yaml says what it is, with its cases, and NAME.py detects it (rulebook.py)."""
