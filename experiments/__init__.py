"""Studies made with depth_lib that are not part of it: they run from a clone."""
