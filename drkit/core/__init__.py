"""Specs, registry, recipes and plans: plain data, without torch and without the command line."""
