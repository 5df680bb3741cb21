"""One script an engine, each run under the Python that has that engine, out of this folder."""
