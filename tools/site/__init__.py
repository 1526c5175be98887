"""Builds the site and the book: pages over what the project has, and nothing that is written for them alone.

    python -m tools.site fetch      what pages need of the web (Pyodide, MathJax), once, into the environment
    python -m tools.site html       output/site/html, with its links checked
    python -m tools.site book       output/site/zerocourse.pdf, printed from those pages

`source` lays the texts out as the repository does, so that links between them lead where they lead on a forge. Sphinx reads
`docs/conf.py`, and MyST-NB shows the chapters as they were executed. `public_names` writes a page for each room from docstrings,
`browser_python` packs the commands that answer in a page, `step_pages` records the steps of the player, `links` follows every
link inside, and `book` prints.
"""
