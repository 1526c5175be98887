"""What Sphinx is told. `python -m tools.site html` lays the sources out and calls it; `ZEROCOURSE_REPOSITORY` names the forge, if there is one."""

import os

import zerocourse

project, author = "zerocourse", "zerocourse contributors"
copyright = "zerocourse contributors: code under MIT, prose and pictures under CC BY 4.0"
release = version = zerocourse.__version__
language = "en"
extensions = ["myst_nb", "sphinx_copybutton", "sphinx.ext.mathjax", "tools.site.first_use", "tools.site.buttons"]

nb_execution_mode = "off"  # chapters are executed by `make notebooks`, and tests compare what they show
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
myst_links_external_new_tab = False
mathjax_path = "mathjax/tex-mml-chtml.js"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp"

html_theme = "sphinx_book_theme"
html_title = "zerocourse"
html_css_files = ["site.css"]
html_copy_source = True
html_show_sourcelink = False
exclude_patterns = ["docs/_static"]
repository = os.environ.get("ZEROCOURSE_REPOSITORY", "").rstrip("/")
html_theme_options = {
    "navbar_persistent": [], "show_navbar_depth": 1, "home_page_in_toc": True, "use_fullscreen_button": False, "use_download_button": True,
    **({"repository_url": repository, "repository_branch": "main", "path_to_docs": "", "use_repository_button": True, "use_issues_button": True,
        "launch_buttons": {"colab_url": "https://colab.research.google.com"}} if repository else {}),
}
