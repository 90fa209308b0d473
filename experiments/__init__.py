"""Studies made with depth_lib that are no part of it: they run from a clone."""
