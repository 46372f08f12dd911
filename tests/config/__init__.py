"""Keys, presets, plug-ins: what resolves to what, and what is said of mistakes."""
