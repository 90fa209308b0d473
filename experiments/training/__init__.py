"""How the embedded toys were made, and an experiment on what training decides about the use of depth."""
