"""What the notebooks use: pictures, widgets, the tour, and the checks of exercises. No lower room imports it."""
