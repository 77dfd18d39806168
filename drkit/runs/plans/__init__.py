"""From a recipe to the stages of its run, and what they will cost."""
