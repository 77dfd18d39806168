"""What everything else builds on: protocols, specs, the registry and plugin discovery. No torch at import."""
