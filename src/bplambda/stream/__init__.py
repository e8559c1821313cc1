"""`bplambda stream`: learning from a live stream, made up or a person's own."""
