"""One stand-alone script an engine, each run under the Python that has that engine."""
