"""What turns a page's markers into computed numbers, claim cards, recorded runs and code.

`site.py` is what MkDocs calls; `python -m docs.hooks.check` says what is wrong with pages, file and
line; `python -m docs.hooks.record` runs the commands whose output pages show.
"""
