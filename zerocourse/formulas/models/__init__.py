"""Models beyond GPT-2: their shapes, also from a `config.json`, what a token costs in them, and their peak. No torch."""
