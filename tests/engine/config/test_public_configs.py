"""What public ds_config.json files hold loads, or the sentence names what is missing."""

import json
import re
import warnings

import pytest
from public_configs import LOADS, REFUSED

from zerocourse.engine.config import Config
from zerocourse.errors import BadInput


@pytest.mark.parametrize("name", LOADS)
def test_a_public_form_loads(name, tmp_path):
    (tmp_path / "ds_config.json").write_text(json.dumps(LOADS[name]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = Config.load(tmp_path / "ds_config.json", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Config.load(json.loads(json.dumps(config.as_dict())), 2) == config, "as it is resolved it needs no warning"


@pytest.mark.parametrize("name", REFUSED)
def test_a_public_form_is_refused_by_the_mechanism_that_is_missing(name):
    given, words = REFUSED[name]
    with pytest.raises(BadInput, match=re.escape(words)) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Config.load(given, 2)
    assert "\n" not in str(caught.value)


def test_of_each_group_there_are_enough():
    assert len(LOADS) >= 20 and len(LOADS) + len(REFUSED) >= 28
