#!/usr/bin/env python3
"""Writes the fixtures of the tokenizer tests: loader/tests/fixtures/.

    scripts/make_tokenizer_fixtures.py                  what PyPI's tokenizers says
    scripts/make_tokenizer_fixtures.py --peer PROGRAM   and what llama.cpp's llama-tokenize says

The first needs PyPI's tokenizers (0.23) and gguf. The second needs llama.cpp's program too, and the
vocabularies and texts in ../shared (or in $HTC_SHARED); it writes digests of ids only.
"""

import argparse
import hashlib
import json
import os
import struct
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "loader" / "tests" / "fixtures"
SHARED = Path(os.environ.get("HTC_SHARED", ROOT.parent / "shared"))

TEXTS = [
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    " \n",
    "\n ",
    "\t\n \n\n  x",
    "\r\n\r\n",
    "a\r\n  b",
    "Hello",
    "Hello world",
    "  Hello   world  ",
    "Hello, y'all! How are you 😁 ?",
    "I'm we've I'll they'd it's don't you're",
    "I'M WE'VE I'LL THEY'D IT'S DON'T YOU'RE",
    "it'ſ 'Sup 'tis 'LL 'Re x'y 'a ''s '",
    "3 33 333 3333 33333 333333 3.14 1,000,000",
    "x1y22z333 ½ ² Ⅷ ٣٤٥ 一二三 12三",
    "camelCase HTTPServer XMLHttpRequest iOS McDonald ÉCOLE École ÜNDER ǅungla",
    "snake_case kebab-case path/to/file.rs https://example.org/?q=1&r=2#x",
    "fn main() {\n    println!(\"{}\", 1 + 1);\n}\n\n\n// end",
    "\tif x == 1:\n\t\treturn -x**2 # no\n",
    "a=b;c+=d;e!=f;g<<=h",
    "...... !!!!?? ---- ==== ``` \"\"\" ''' $5 €6 £7 ©®™ ± × ÷",
    "naïve façade Ärger ß ŒUVRE œuvre",
    "e\u0301te\u0301 n\u0303 A\u030a \u0301 \u0301x x\u0301\u0302\u0303 \u0488",
    "Привет, мир! Это тест №5.",
    "Γειά σου Κόσμε ᾼ ῼ",
    "日本語のテキスト。「引用」、カタカナ・ひらがな",
    "我想在apple工作1314151天～",
    "한국어 텍스트 ㄱㄴㄷ",
    "नमस्ते दुनिया क्षि",
    "สวัสดีชาวโลก กำลัง",
    "مرحبا بالعالم ١٢٣",
    "שלום עולם",
    "🚀 🏳\ufe0f\u200d🌈 👩\u200d👩\u200d👧 🇩🇪",
    "\u00a0no-break\u3000ideographic\u2003em\u2028line\u2029para\u0085nel\u200bzero",
    "\u3000\u3000x \u3000\u3002 \u3002x",
    "\ufeffbyte order mark",
    "\x00\x01\x7f\x1f control \x01\x02abc",
    "\ue000 private \U000f0000 \u0378 unassigned",
    "ʰʱ modifier ª º ℵ letters ʕʖ",
    "ａｂｃ ＡＢＣ １２３ ！／～",
    "x\u2018y\u2019z \u201cq\u201d \u2014 \u2026",
    "ab/c//d/\n/\n e.\n.\n",
    "word\n\n  \n word   \n",
    "end with spaces   ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ABCDEFGHIJKLMNOP" * 3,
    "MÉLANGÉÁÉ\u0301\u0302 \u0301ABC \u0301\u0301ABCd",
    "<|endoftext|> <|im_start|>user\nhi<|im_end|>",
]

LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT_4O = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEP_SEEK_V3 = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEP_SEEK_LETTERS = (
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0"
    "-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-"
    "\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
    "\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-"
    "\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113"
    "\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00"
    "-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-"
    "\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-"
    "\U000118df\U0001e900-\U0001e943]+"
)


def byte_level(use_regex):
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def split(pattern):
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


PRE_TOKENIZERS = {
    "gpt-2": byte_level(True),
    "starcoder": sequence(digits(True), byte_level(True)),
    "llama-bpe": sequence(split(LLAMA_3), byte_level(False)),
    "qwen2": sequence(split(QWEN_2), byte_level(False)),
    "deepseek-llm": sequence(
        split("[\r\n]"),
        split(DEEP_SEEK_LETTERS),
        split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
        split("\\s+$"),
        split(CJK),
        digits(False),
        byte_level(False),
    ),
    "deepseek-coder": sequence(
        split("[\r\n]"),
        split("\\s?\\p{L}+"),
        split("\\s?\\p{P}+"),
        split(CJK),
        digits(True),
        byte_level(False),
    ),
    "deepseek-v3": sequence(
        split("\\p{N}{1,3}"),
        split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
        split(DEEP_SEEK_V3),
        byte_level(False),
    ),
    "gpt-4o": sequence(split(GPT_4O), byte_level(False)),
    "tekken": sequence(split(TEKKEN), byte_level(False)),
}

RULE_TEXTS = [
    "",
    " ",
    "  ",
    "Hello  world\n it <s>x a",
    " Hello",
    "<s>Hello</s> world <s>  x</s>",
    "<s> a <s></s>b c",
    "a\u2581b \u2581 c<s>\u2581d",
    "word</s>",
    "café déjà vu",
    "cafe\u0301 de\u0301ja\u0300 vu",
    "한국어 텍스트",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165",
    "ﬁ ½ Ⅷ \u00a0x ﷺ",
    "a<s>\u0301b <s\u0301> e</s>\u0301",
    "A\u030a\u0323 q\u0323\u0307 \u0344 \u212b",
    "see<x>that <x>  <x> <y> x<y>  z",
    "the<xe\u0301><s><xé>",
]

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write(name, value):
    (FIXTURES / name).write_text(json.dumps(value, separators=(",", ":")) + "\n")


def tokenizers_fixtures():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    corpus = (ROOT / "assets/demo/alice.txt").read_text().splitlines(keepends=True)
    tokenizer.train_from_iterator(corpus + TEXTS, trainer)
    model = json.loads(tokenizer.to_str())
    write("bpe_tokenizer.json", model)

    words, ids = {}, {}
    for name, pre in PRE_TOKENIZERS.items():
        variant = dict(model, pre_tokenizer=pre)
        variant = Tokenizer.from_str(json.dumps(variant))
        words[name] = []
        for text in TEXTS:
            pieces = variant.pre_tokenizer.pre_tokenize_str(text)
            words[name].append([text[a:b] for _, (a, b) in pieces])
            assert "".join(words[name][-1]) == text, (name, text, pieces)
        ids[name] = [variant.encode(text).ids for text in TEXTS]
    write("words.json", {"texts": TEXTS, "words": words})
    write("bpe_ids.json", {"texts": TEXTS, "pre_tokenizers": PRE_TOKENIZERS, "ids": ids})
    characters_fixture(Tokenizer)
    added = [dict(token) for token in model["added_tokens"]]
    added += [dict(added[0], id=len(model["model"]["vocab"]), content="<s>")]
    rules_model = dict(model, added_tokens=added)
    rules_fixture(Tokenizer, rules_model, "bytes")


def characters_fixture(Tokenizer):
    """A vocabulary of characters with byte fallback, cut out of the demo model's."""
    import gguf

    fields = gguf.GGUFReader(ROOT / "assets/demo/reference-7m-f16.gguf").fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kept = tokens[:559] + [token for token in tokens[559:] if len(token) == 1]
    vocab = {token: index for index, token in enumerate(kept)}
    merges = []
    for token in kept[259:559]:
        parts = [(token[:i], token[i:]) for i in range(1, len(token))]
        merges += sorted(
            ([a, b] for a, b in parts if a in vocab and b in vocab),
            key=lambda pair: (vocab[pair[0]], vocab[pair[1]]),
        )
    special = [
        {"id": index, "content": kept[index], "special": True, "single_word": False}
        | {"lstrip": index == 1, "rstrip": index == 2, "normalized": False}
        for index in range(3)
    ]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    metaspace = {"type": "Metaspace", "replacement": "▁", "split": False}
    space = {"type": "Split", "pattern": {"String": " "}, "invert": False}
    model = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }
    write("characters_tokenizer.json", model)
    variants = {
        "prepend": [{"type": "Sequence", "normalizers": [prepend, replace]}, None],
        "replace": [replace, None],
        "gemma": [replace, dict(space, behavior="MergedWithPrevious")],
        "first": [None, dict(metaspace, prepend_scheme="first")],
        "never": [None, dict(metaspace, prepend_scheme="never")],
    }
    texts = TEXTS + ["a<s>b", "a <s> b </s> c", "<s> a</s>\n\nb", "▁a", " ▁a"]
    ids = {}
    for name, (normalizer, pre_tokenizer) in variants.items():
        variant = dict(model, normalizer=normalizer, pre_tokenizer=pre_tokenizer)
        variant = Tokenizer.from_str(json.dumps(variant))
        ids[name] = [variant.encode(text).ids for text in texts]
    write("characters_ids.json", {"texts": texts, "variants": variants, "ids": ids})
    rules_fixture(Tokenizer, model, "characters")


def rules_fixture(Tokenizer, model, name):
    """Ids by every rule for spaces, Unicode forms and added tokens that are normalised."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    size = max(len(model["model"]["vocab"]), *(old["id"] + 1 for old in model["added_tokens"]))
    token = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
    added = model["added_tokens"] + [
        dict(token, id=size, content="<x>", normalized=True),
        dict(token, id=size + 1, content="<y>", normalized=True, lstrip=True, rstrip=True),
        dict(token, id=size + 2, content="<xé>", normalized=True),
    ]
    forms = {"": None} | {form: {"type": form} for form in ["NFC", "NFD", "NFKC", "NFKD"]}
    variants = {}
    if name == "bytes":
        for form, step in forms.items():
            change = {"normalizer": step, "added_tokens": model["added_tokens"]}
            variants[form or "none"] = change
            variants[f"{form or 'none'} added"] = dict(change, added_tokens=added)
    else:
        for scheme in ["always", "first", "never"]:
            for split_spaces in [True, False]:
                variants[f"{scheme} {split_spaces}"] = {
                    "pre_tokenizer": {
                        "type": "Metaspace",
                        "replacement": "▁",
                        "prepend_scheme": scheme,
                        "split": split_spaces,
                    },
                }
        for form, step in forms.items():
            steps = [step] * bool(step)
            for rule, rest in {"prepend": [prepend, replace], "replace": [replace]}.items():
                variants[f"{rule} {form}"] = {
                    "normalizer": {"type": "Sequence", "normalizers": steps + rest},
                }
            if step:
                variants[f"always {form}"] = dict(variants["always False"], normalizer=step)
        # The reader refuses the stripping of spaces where no space is put before a text.
        plain = [dict(token, lstrip=False, rstrip=False) for token in added]
        for key in list(variants):
            strips = not key.startswith(("never", "replace"))
            added_tokens = added if strips else added[:-3] + plain[-3:]
            variants[f"{key} added"] = dict(variants[key], added_tokens=added_tokens)
    ids = {}
    for key, change in variants.items():
        variant = Tokenizer.from_str(json.dumps(dict(model, **change)))
        ids[key] = [variant.encode(text).ids for text in RULE_TEXTS]
    write(f"rules_{name}_ids.json", {"texts": RULE_TEXTS, "variants": variants, "ids": ids})


def peer_fixtures(program):
    digests = {}
    for vocabulary in ["gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"]:
        model = SHARED / f"models/gguf-vocab/ggml-vocab-{vocabulary}.gguf"
        for text in sorted((SHARED / "text").glob("*.txt")):
            command = [program, "--ids", "--no-escape", "--no-bos", "--log-disable"]
            command += ["--no-parse-special", "--file", text, "--model", model]
            said = subprocess.run(command, capture_output=True, text=True, check=True)
            ids = json.loads(said.stdout.strip().splitlines()[-1])
            data = struct.pack(f"<{len(ids)}I", *ids)
            digest = hashlib.sha256(data).hexdigest()
            digests.setdefault(vocabulary, {})[text.name] = [len(ids), digest]
    write("token_digests.json", digests)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", help="llama-tokenize of llama.cpp")
    arguments = parser.parse_args()
    tokenizers_fixtures()
    if arguments.peer:
        peer_fixtures(arguments.peer)


if __name__ == "__main__":
    main()
