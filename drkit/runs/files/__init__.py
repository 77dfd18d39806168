"""Work on files, outside a run: one module a command or two, each a function that commands and users call."""
