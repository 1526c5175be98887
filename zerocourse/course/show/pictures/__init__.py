"""Pictures of mechanisms, drawn as SVG from real objects and recorded runs. Each file has one picture, each returns a `Shown`."""
