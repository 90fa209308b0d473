"""The commands of depth-lib. A run is one model on one dataset."""
