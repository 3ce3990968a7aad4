//! The expected texts come from Python's jinja2 with the settings of `transformers`.

use super::*;

type Case = (&'static str, &'static str, [&'static str; 2]);

#[rustfmt::skip]
const CASES: [Case; 5] = [
    (
        "chatml",
        r###"{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{% endif %}
"###,
        [
            r###"<|im_start|>user
 a b <c> & 'd' <|im_end|>

<|im_start|>assistant
Grüße "x"
<|im_end|>

<|im_start|>user
und?<|im_end|>

<|im_start|>assistant

"###,
            r###"<|im_start|>system
 be brief <|im_end|>

<|im_start|>user
 a b <c> & 'd' <|im_end|>

<|im_start|>assistant
Grüße "x"
<|im_end|>

<|im_start|>user
und?<|im_end|>

<|im_start|>assistant

"###,
        ],
    ),
    (
        "headers",
        r###"{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start|>' + message['role'] + '<|end|>

'+ message['content'] | trim + '<|eot|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>

' }}{% endif %}"###,
        [
            r###"<s><|start|>user<|end|>

a b <c> & 'd'<|eot|><|start|>assistant<|end|>

Grüße "x"<|eot|><|start|>user<|end|>

und?<|eot|><|start|>assistant<|end|>

"###,
            r###"<s><|start|>system<|end|>

be brief<|eot|><|start|>user<|end|>

a b <c> & 'd'<|eot|><|start|>assistant<|end|>

Grüße "x"<|eot|><|start|>user<|end|>

und?<|eot|><|start|>assistant<|end|>

"###,
        ],
    ),
    (
        "turns",
        r###"{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first = messages[0]['content'].strip() + '

' -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set first = '' -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('roles must alternate') }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<turn>' + role + '
' + (first if loop.first else '') }}{{ message['content'] | trim }}{{ '<end>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<turn>model
' }}
{%- endif -%}
"###,
        [
            r###"<s><turn>user
a b <c> & 'd'<end>
<turn>model
Grüße "x"<end>
<turn>user
und?<end>
<turn>model
"###,
            r###"<s><turn>user
be brief

a b <c> & 'd'<end>
<turn>model
Grüße "x"<end>
<turn>user
und?<end>
<turn>model
"###,
        ],
    ),
    (
        "instructions",
        r###"{% set ns = namespace(system='', n=0) %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = m.content %}{% continue %}{% endif %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}{{ bos_token if ns.n == 1 }}[INST] {% if ns.n == 1 and ns.system %}<<SYS>>{{ ns.system }}<</SYS>>{% endif %}{{ m.content }} [/INST]{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}{% if tools %}never{% endif %}"###,
        [
            r###"<s>[INST]  a b <c> & 'd'  [/INST] Grüße "x"
</s>[INST] und? [/INST]"###,
            r###"<s>[INST] <<SYS>> be brief <</SYS>> a b <c> & 'd'  [/INST] Grüße "x"
</s>[INST] und? [/INST]"###,
        ],
    ),
    (
        "python",
        r###"{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ m.role.upper() }} {{ m.content.split(' ') | length }} {{ m['content'].replace('a', 'A').startswith('A') }} {{ m | tojson }} {% for k, v in m.items() %}{{ k }}={{ v | length }};{% endfor %}{{ '' if loop.last else '|' }}{% endfor %}{{ tool_names is defined }} {{ none is none }} {{ 'x' ~ 3 }}"###,
        [
            r###"1/3 USER 7 False {"role": "user", "content": " a b <c> & 'd' "} role=4;content=15;|2/3 ASSISTANT 2 False {"role": "assistant", "content": "Grüße \"x\"\n"} role=9;content=10;|3/3 USER 1 False {"role": "user", "content": "und?"} role=4;content=4;False True x3"###,
            r###"1/4 SYSTEM 4 False {"role": "system", "content": " be brief "} role=6;content=10;|2/4 USER 7 False {"role": "user", "content": " a b <c> & 'd' "} role=4;content=15;|3/4 ASSISTANT 2 False {"role": "assistant", "content": "Grüße \"x\"\n"} role=9;content=10;|4/4 USER 1 False {"role": "user", "content": "und?"} role=4;content=4;False True x3"###,
        ],
    ),
];

fn conversation(template: &str, system: bool) -> Conversation {
    let said = [
        ("system", " be brief "),
        ("user", " a b <c> & 'd' "),
        ("assistant", "Grüße \"x\"\n"),
        ("user", "und?"),
    ];
    let messages = said.iter().skip(usize::from(!system));
    Conversation {
        template: template.to_owned(),
        messages: messages
            .map(|(role, content)| Message {
                role: (*role).to_owned(),
                content: (*content).to_owned(),
            })
            .collect(),
        bos: "<s>".to_owned(),
        eos: "</s>".to_owned(),
    }
}

#[test]
fn templates_match_jinja2() {
    for (name, template, expected) in CASES {
        for (expected, system) in expected.into_iter().zip([false, true]) {
            let found = render(&conversation(template, system)).unwrap();
            assert_eq!(found, expected, "{name}, system: {system}");
        }
    }
}

#[test]
fn template_exceptions_are_reported() {
    let template = "{{ bos_token }}\n{{ raise_exception('only one ' + 'turn') }}";
    let error = render(&conversation(template, false)).unwrap_err();
    assert_eq!(error, "line 2: invalid operation: only one turn");
    for (template, word) in [
        ("{% for m in messages %}", "syntax error"),
        ("{% generate %}", "unknown statement"),
        ("{{ strftime_now('%K') }}", "%K"),
        ("{{ messages.nothing.at.all }}", "undefined"),
        ("{{ unknown(1) }}", "unknown"),
        ("{% include 'other' %}", ""),
    ] {
        let error = render(&conversation(template, false)).unwrap_err();
        assert!(error.contains(word), "{template}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn loops_and_long_texts_are_bounded() {
    let forever = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let error = render(&conversation(forever, false)).unwrap_err();
    assert!(error.contains("steps"), "{error}");
    let long = "{% for a in range(9999) %}{{ 'x' * 1000 }}{% endfor %}";
    let error = render(&conversation(long, false)).unwrap_err();
    assert!(error.contains("bytes"), "{error}");
    let deep = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    let error = render(&conversation(deep, false)).unwrap_err();
    assert!(error.contains("recursion"), "{error}");
}

#[test]
fn transformers_functions_are_defined() {
    let text = |template: &str| render(&conversation(template, false)).unwrap();
    assert_eq!(
        text("{% if tools is not none or documents is not none %}x{% endif %}"),
        ""
    );
    assert_eq!(text("{% if tools %}x{% endif %}y"), "y");
    let year = text("{{ strftime_now('%Y') }}");
    assert!(year.len() == 4 && year.as_str() >= "2024", "{year}");
    let marked =
        "a {%- generation -%} b {%- endgeneration -%} c {% generation %}d{% endgeneration %}";
    assert_eq!(text(marked), "abc d");
}

/// From jinja2 3.1.6 with the `tojson` of `transformers`.
#[test]
fn values_are_written_and_tested_as_in_python() {
    let cases = [
        (
            r###"{% if tools is iterable and tools | length > 0 %}x{% endif %}y"###,
            r###"y"###,
        ),
        (
            r###"{{ [none is iterable, 1 is iterable, 'a' is iterable, missing is iterable, {} is iterable, true is iterable] }}"###,
            r###"[False, False, True, True, True, False]"###,
        ),
        (
            r###"{{ [none is sequence, 'a' is sequence, {} is sequence, [] is sequence, 1 is sequence, missing is sequence] }}"###,
            r###"[False, True, True, True, False, True]"###,
        ),
        (
            r###"{{ [none is mapping, {} is mapping, [] is mapping, 'a' is mapping] }}"###,
            r###"[False, True, False, False]"###,
        ),
        (
            r###"{{ {'b': 1, 'a': [none, true, 1.5, 'it\'s', 'say "x"']} }}"###,
            r###"{'b': 1, 'a': [None, True, 1.5, "it's", 'say "x"']}"###,
        ),
        (
            r###"{{ {'b': 1, 'a': 2} | tojson }}"###,
            r###"{"b": 1, "a": 2}"###,
        ),
        (
            r###"{{ {'b': 1, 'a': [1, 2, {}], 'c': []} | tojson(separators=(',', ':')) }}"###,
            r###"{"b":1,"a":[1,2,{}],"c":[]}"###,
        ),
        (
            r###"{{ {'b': 1, 'a': {'y': [1, 2], 'x': 'é😀'}} | tojson(sort_keys=true, ensure_ascii=true) }}"###,
            r###"{"a": {"x": "\u00e9\ud83d\ude00", "y": [1, 2]}, "b": 1}"###,
        ),
        (
            r###"{{ {'b': 1, 'a': [1, {}], 'c': []} | tojson(indent=2) }}"###,
            r###"{
  "b": 1,
  "a": [
    1,
    {}
  ],
  "c": []
}"###,
        ),
        (
            r###"{{ {'b': 1} | tojson(indent=4, separators=(';', '=')) }}"###,
            r###"{
    "b"=1
}"###,
        ),
        (
            r###"{{ none }} {{ true }} {{ missing }} {{ [1, 'a\nb\\'] | string }} {{ none | string }}"###,
            r###"None True  [1, 'a\nb\\'] None"###,
        ),
        (
            r###"{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{{ v }}{% endfor %}"###,
            r###"b1a2"###,
        ),
    ];
    for (template, expected) in cases {
        assert_eq!(
            render(&conversation(template, false)).unwrap(),
            expected,
            "{template}"
        );
    }
    for (template, word) in [
        ("{{ [] | tojson(separators=(',',)) }}", "expected 2"),
        ("{{ [] | tojson(allow_nan=true) }}", "allow_nan"),
        (
            "{% set x = namespace(y=['a']) %}{% for i in range(40) %}{% set x.y = [x.y, x.y] %}{% endfor %}{{ x.y | string }}",
            "too long",
        ),
        (
            "{% set x = namespace(y=['a']) %}{% for i in range(40) %}{% set x.y = [x.y, x.y] %}{% endfor %}{{ x.y }}",
            "bytes",
        ),
    ] {
        let error = render(&conversation(template, false)).unwrap_err();
        assert!(error.contains(word), "{template}: {error}");
    }
}
