"""Runs: plan the stages of a recipe, and execute them."""
