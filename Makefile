# make tour | test | check | test-quick | test-gpu | lab | notebooks | pictures | kaggle | site | book | env | clean. Each makes the environment .venv when it is not there.
#   PYTHON=python3.12      the Python that the environment is made with (3.11 or newer)
#   TORCH_INDEX=URL        one more package index for torch alone, such as PyTorch's own for CPU builds (see docs/setup.md)
#   TOUR_ARGS, PYTEST_ARGS, LAB_ARGS   more arguments for the command
#   WORKERS=1              for `make test`: one test after the other; by default two workers share the tests, as a rank takes a core
#   CHAPTERS=05            for `make notebooks`: the chapters, by number; all by default

PYTHON ?= python3
TORCH_INDEX ?=
TOUR_ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 2
CHAPTERS ?=
# What `make check` runs of the quick tests: the rules of the house, and the ground floors.
CHECKED := tests/house tests/formulas tests/layout tests/data tests/zero/test_mini.py
KAGGLE_USER ?= USERNAME
LAB_ARGS ?=
# Where a learner works: copies that are theirs, and that git does not see.
LEARNING := learning
# It opens at chapter 00, and shows that folder. tools/jupyter keeps it from asking, over the notebook, whether one wants its news. JupyterLab refuses to run as root, as one is in a container, unless told.
LAB := --ServerApp.root_dir=$(LEARNING) --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb --LabApp.news_url=None \
    --Application.log_level=WARN \
    $(if $(filter 0,$(shell id -u)),--allow-root)

VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
NEEDED := zerocourse needs Python 3.11 or newer

help:  ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1 - \2/p' Makefile

tour: $(VENV)/.tour  ## the ZeRO stages side by side in two real processes (two minutes)
	$(VENV)/bin/python -m zerocourse tour $(TOUR_ARGS)

test: $(VENV)/.test  ## the tests
	$(VENV)/bin/python -m pytest $(if $(filter-out 1,$(WORKERS)),-n $(WORKERS) --dist loadgroup) $(PYTEST_ARGS)

check: $(VENV)/.test  ## before a commit: linter, types, rules of the house, the quickest tests (about a minute)
	$(VENV)/bin/python -m ruff check
	$(VENV)/bin/python -m tools.typed & types=$$!; \
	    $(VENV)/bin/python -m pytest -q --quick $(CHECKED) $(PYTEST_ARGS); tests=$$?; wait $$types && exit $$tests

test-quick: $(VENV)/.test  ## the tests to run while one works (under three minutes)
	$(VENV)/bin/python -m pytest --quick $(PYTEST_ARGS)

test-gpu: $(VENV)/.test  ## the tests that need one GPU, or two; the others never see any
	$(VENV)/bin/python -m pytest --gpu -m "gpu or gpus2" $(PYTEST_ARGS)

lab: $(VENV)/.lab  ## the course in JupyterLab, in copies of your own (learning/)
	@$(VENV)/bin/python -m zerocourse course $(LEARNING) --update
	@echo "JupyterLab starts, and opens chapter 00 in your browser. Otherwise open one of the addresses below. Ctrl-C twice ends it."
	@JUPYTER_CONFIG_PATH=$(CURDIR)/tools/jupyter$(addprefix :,$(JUPYTER_CONFIG_PATH)) $(VENV)/bin/python -m jupyterlab $(LAB) $(LAB_ARGS)

notebooks: $(VENV)/.test  ## run every chapter again, in place
	$(VENV)/bin/python -m tools.notebooks run $(CHAPTERS)

pictures: $(VENV)/.test  ## draw the picture of the README again
	$(VENV)/bin/python -m zerocourse.course.show.pictures.story

kaggle: $(VENV)/.lab  ## what one uploads to Kaggle, in output/kaggle (KAGGLE_USER=your account)
	$(VENV)/bin/python -m tools.kaggle --user $(KAGGLE_USER)

site: $(VENV)/.site  ## the chapters, exercises and guides as a site, in output/site/html, with two pages that answer
	$(VENV)/bin/python -m tools.site html

book: $(VENV)/.site site  ## the chapters in one PDF, output/site/zerocourse.pdf; it needs Chromium
	$(VENV)/bin/python -m tools.site book

exercises: $(VENV)/.test  ## write exercises/ anew from solutions/
	$(VENV)/bin/python -m tools.exercises

env: $(VENV)/.test  ## the whole environment, and nothing more

clean:  ## remove the environment and the caches; what runs wrote under output/ stays, and so does learning/
	rm -rf $(VENV) build *.egg-info .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and alone: its index then serves nothing else, and no later range can fetch another build of it.
$(VENV)/.torch: constraints.txt
	@command -v $(PYTHON) >/dev/null || \
	    { echo "$(NEEDED), and there is no $(PYTHON) here: name another with make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit( \
	    "$(NEEDED), and $(PYTHON) is %d.%d: name another with make PYTHON=python3.12" % v)'
	@echo "The environment $(VENV) is made, once. That takes 3 to 10 minutes and a download of about 0.5 GB, or 3 GB with CUDA, which is"
	@echo "what pip takes on Linux unless TORCH_INDEX names the CPU builds (docs/setup.md)."
	@$(PYTHON) -m venv $(VENV)
	@echo "torch is installed ..."
	@$(PIP) install -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	@touch $@

# One stamp for each set of packages, so that the tour does not wait for JupyterLab.
$(VENV)/.lab: EXTRAS := [notebooks,triton]
$(VENV)/.test: EXTRAS := [test,triton]
$(VENV)/.site: EXTRAS := [notebooks,site]
# Pyodide and MathJax come from npm. Without them the tests of the two pages skip, and `make site` says what is missing.
$(VENV)/.test $(VENV)/.site: FETCHED := site
$(VENV)/.tour $(VENV)/.lab $(VENV)/.test $(VENV)/.site: $(VENV)/.torch pyproject.toml constraints.txt
	@echo "zerocourse$(EXTRAS) and what it needs are installed ..."
	@$(PIP) install -c constraints.txt -e '.$(EXTRAS)'
	@$(if $(FETCHED),$(VENV)/bin/python -m tools.site fetch || echo "what pages need of npm could not be fetched")
	@touch $@

.PHONY: help tour test check test-quick test-gpu lab notebooks kaggle site book exercises env clean
