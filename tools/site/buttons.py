"""A button for Kaggle on each notebook, beside the theme's own for Colab and for the file: on a forge that Kaggle can read, or none."""

KAGGLE = "https://www.kaggle.com/kernels/welcome?src="


def add_kaggle(app, pagename, templatename, context, doctree):
    repository = app.config.html_theme_options.get("repository_url")
    if repository and pagename.startswith(("notebooks/", "exercises/")):
        context.setdefault("header_buttons", []).append({
            "type": "link", "url": f"{KAGGLE}{repository}/blob/main/{pagename}.ipynb", "text": "Kaggle", "icon": "fas fa-rocket",
            "tooltip": "Open this notebook on Kaggle", "label": "open-on-kaggle"})


def setup(app):
    app.connect("html-page-context", add_kaggle, priority=700)
    return {"parallel_read_safe": True}
