"""Trials that several chapters and the commands tell of: what a link of limited rate makes of a step, and what a cost model says of it."""
