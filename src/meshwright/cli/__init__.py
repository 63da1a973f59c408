"""The command line: one command per file, which reads its arguments, calls the library and prints."""
