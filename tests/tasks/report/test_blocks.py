from typing import Any

import pytest

from phasewise.tasks.report.html import environment
from tests.validations.report.samples import HOSTILE


def as_html(block: Any) -> str:
    """The block as the pages have it, without blanks between tags."""
    template = environment().from_string('{% from "blocks.html" import block_html %}{{ block_html(block) }}')
    return template.render(block=block).strip()


def text(template: str, **params: Any) -> dict[str, Any]:
    return {"content_block_type": "string_template", "string_template": {"template": template, "params": params}}


@pytest.mark.parametrize(
    ("block", "html"),
    [
        (None, "–"),
        (3, "3"),
        (["a", 1], "a 1"),
        (text("<br><br>$count of $all rows.", count=1, all=None), "1 of – rows."),
        (text("one<br>two"), "one<br>two"),
        (text("$5 and $unknown"), "$5 and $unknown"),
        (text("$icon", icon='<i class="fas fa-times text-danger"></i>'), '<span class="word failed">✗ fails</span>'),
        (text("$icon", icon='<i class="fas fa-check-circle text-success"></i>'), '<span class="word passed">✓ passes</span>'),
        (
            {"content_block_type": "collapse", "collapse_toggle_link": "More", "collapse": ["inside"]},
            "<details><summary>More</summary><div>inside</div></details>",
        ),
        (
            {"content_block_type": "table", "header_row": ["A"], "table": [[1], ["b"]]},
            '<table class=""><thead><tr><th scope="col">A</th></tr></thead><tbody><tr><td>1</td></tr><tr><td>b</td></tr></tbody></table>',
        ),
        ({"content_block_type": "bullet_list", "bullet_list": ["a", "b"]}, "<ul><li>a</li><li>b</li></ul>"),
        ({"content_block_type": "text", "header": "Why", "text": ["a"]}, "<p><strong>Why</strong></p><p>a</p>"),
        ({"content_block_type": "content_block_container", "content_blocks": ["a", "b"]}, "ab"),
        ({"content_block_type": 7}, "<pre>{&#39;content_block_type&#39;: 7}</pre>"),
    ],
)  # fmt: skip
def test_each_kind_of_block_has_its_html(block: Any, html: str):
    assert as_html(block) == html


@pytest.mark.parametrize(
    "block",
    [
        HOSTILE,
        text(HOSTILE),
        text("$value", value=HOSTILE),
        {"content_block_type": "table", "table": [[HOSTILE]]},
        {"content_block_type": "collapse", "collapse_toggle_link": HOSTILE, "collapse": [HOSTILE]},
        {"content_block_type": "unheard of", "value": HOSTILE},
    ],
)
def test_no_block_lets_markup_through(block: Any):
    html = as_html(block)
    assert "<script" not in html
    assert "<img" not in html
    assert "alert(1)" in html
