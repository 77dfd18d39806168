"""The stages of a run, those of one step in a file: settings, inputs, version, and the function that runs the stage.

The files import no torch, because plans import them; their functions import the rest when the stage runs.
"""
