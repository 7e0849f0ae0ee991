"""Pages for browsers: what is served, its description as OpenAPI, and a form to try requests."""
