"""Reads what a job leaves behind and says which rank, which collective, which cause.

    files -> source.py (folders, gz, tar; bounded) -> readers/ (by content) -> Evidence -> rules/ (one file each) -> Diagnosis

Nothing of a file is ever executed; a file that cannot be read costs one line and no more.
"""
