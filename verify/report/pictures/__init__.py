"""Pictures as SVG, drawn from records alone."""
