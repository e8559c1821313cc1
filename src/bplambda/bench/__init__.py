"""How fast we are, measured against what a user would pick instead: `bplambda bench`."""
