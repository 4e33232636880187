"""trireme.plan: the program's JSON as a dict, its refusals as ConfigError; its page is well formed."""

import html.parser
import json

import pytest
import trireme

from program import run

REQUEST = dict(model="llama3-8b", gpus=8, gpu="h100-80gb", max_seq_length="8k")


def test_a_plan_is_what_the_program_prints():
    flags = [word for name, value in REQUEST.items() for word in (f"--{name}", str(value))]
    printed = json.loads(run(".", "plan", *flags, "--zero", 3, "--json"))
    plan = trireme.plan(**REQUEST, zero=3)
    assert plan == printed and plan["fits"] and plan["best"]["configuration"]["zero"] == 3


def test_a_plan_that_does_not_fit_is_told():
    plan = trireme.plan(**{**REQUEST, "gpus": 1, "zero": 0, "offload_optimizer": "none", "offload_params": "none"})
    assert plan["fits"] is False and plan["best"]["memory"]["device_bytes"] > plan["best"]["memory"]["device_limit_bytes"]


def test_stages_are_a_list():
    plans = trireme.plan(**{**REQUEST, "max_seq_length": None}, stages=["2k", "4k"])
    assert [plan["best"]["tokens"] for plan in plans] == [2048, 4096]


def test_a_refused_request_is_told_in_the_program_s_words():
    with pytest.raises(trireme.ConfigError, match="^.*h900"):
        trireme.plan(**{**REQUEST, "gpu": "h900"})
    with pytest.raises(trireme.ConfigError, match="^trireme plan has no flag --gpu_count"):
        trireme.plan(**REQUEST, gpu_count=3)


def test_another_end_is_a_failed_run(tmp_path):
    (tmp_path / "profile.json").write_text("{")
    with pytest.raises(trireme.RunFailed, match="code 65") as failed:
        trireme.plan(**{**REQUEST, "gpu": tmp_path / "profile.json"})
    assert failed.value.exit_code == 65


class Page(html.parser.HTMLParser):
    """Checks that tags close in order, and keeps the values of <data>."""

    def __init__(self, text):
        super().__init__()
        self.open, self.values = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)
        if tag == "data":
            self.values.append(float(dict(attributes)["value"]))

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_and_a_specification_are_written_with_the_plan(tmp_path):
    plan = trireme.plan(**REQUEST, html=tmp_path / "plan.html", spec=tmp_path / "spec.md")
    page = Page((tmp_path / "plan.html").read_text())
    assert plan["best"]["memory"]["device_bytes"] in page.values and plan["best"]["time"]["mfu"] in page.values
    assert (tmp_path / "spec.md").read_text().startswith("# llama3-8b at 8,192 tokens\n")
    stages = {**REQUEST, "max_seq_length": None, "stages": ["2k", "4k"]}
    plans = trireme.plan(**stages, html=tmp_path / "stages.html")
    assert all(plan["best"]["memory"]["device_bytes"] in Page((tmp_path / "stages.html").read_text()).values for plan in plans)
    with pytest.raises(trireme.ConfigError, match="--spec is for one length"):
        trireme.plan(**stages, spec=tmp_path / "none.md")
