"""Where data parallel comes from: rings, parameter servers, MapReduce. Used by chapter 04; the stages do not need them."""
