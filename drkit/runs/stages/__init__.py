"""The stages of a run, one file each: its settings, its inputs, its version, and the function that makes it.

The files import no torch: a plan reads them, and their functions import what they need when the stage runs.
"""
