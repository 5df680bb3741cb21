"""The requests of the API, as they come in. Values are checked by the engine, whose messages say
what to do; here it is decided which names there are, and of which JSON types."""
