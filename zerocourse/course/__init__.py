"""What the notebooks use: pictures, widgets, the tour, and the checks of exercises. Nothing below knows of it."""
