"""The command line: each command parses, calls one function of drkit, and prints."""
