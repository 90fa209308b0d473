"""How the embedded toys were made."""
