"""Where data parallel training comes from: rings, parameter servers, MapReduce. Only chapter 04 uses these files."""
