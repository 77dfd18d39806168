"""The command line: each command parses its arguments, calls one function of drkit, and prints the result."""
