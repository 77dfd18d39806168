"""Recipes: their schema, reading and writing, composing from layers, and checking which parts go together."""
