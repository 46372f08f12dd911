"""Programs stay behind their walls."""
