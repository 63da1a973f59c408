"""Answers in words and numbers, as plain data: what each rank holds, computes and sends, and why."""
