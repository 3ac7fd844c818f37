"""The chat templates that a source may name. Each has marks around what the assistant writes.

Whitespace between the tags is cut away by their dashes: all that is put out is in the strings.
"""

MARIN = r"""
{{- bos_token -}}
{%- for message in messages -%}
    {{- "<|start_header_id|>" + message.role + "<|end_header_id|>\n" -}}
    {%- if message.role == "assistant" -%}
        {%- generation -%}
            {{- message.content | trim + "<|eot_id|>" -}}
        {%- endgeneration -%}
    {%- else -%}
        {{- message.content | trim + "<|eot_id|>" -}}
    {%- endif -%}
    {{- "\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|start_header_id|>assistant<|end_header_id|>\n" -}}
{%- endif -%}
""".strip()
"""Puts out what `MARIN_CHAT_TEMPLATE` of Marin's code does (experiments/marin_models.py, as exp1237 had it): the turns of OLMo 2 with the
special tokens of Llama 3, a line end after each turn, contents without space around them. The tokenizer of later models has another
template, with thinking and tools.
"""

TRINITY = r"""
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role == "system" and not loop.first -%}
        {{- raise_exception("a system message must be the first") -}}
    {%- endif -%}
    {{- "<|im_start|>" + message.role + "\n" -}}
    {%- if message.role == "assistant" -%}
        {%- generation -%}
            {{- message.content + "<|im_end|>" -}}
        {%- endgeneration -%}
    {%- else -%}
        {{- message.content + "<|im_end|>" -}}
    {%- endif -%}
    {{- "\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\n" -}}
{%- endif -%}
""".strip()
"""ChatML's turns. This one is ours: the report names no template, and the `tokenizer_config.json` of Arcee's models was not at hand. What
that says of tools and of thinking is not here.
"""

BUILT_IN = {"marin": MARIN, "trinity": TRINITY}
