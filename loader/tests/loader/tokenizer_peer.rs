//! Token ids against those of llama.cpp (commit 0c1e57098), made with `llama-tokenize --ids
//! --no-escape --no-parse-special --file TEXT --model MODEL`.

use std::path::Path;

use htc_formats::gguf::Gguf;
use htc_formats::vocab::{TokenKind, Vocabulary};
use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};

const DEMO: &[(&str, &[u32])] = &[
    ("", &[]),
    (" ", &[4004, 4004]),
    ("  ", &[4004, 4004, 4004]),
    (
        "   leading spaces",
        &[4004, 4004, 4004, 1720, 281, 561, 3523],
    ),
    (
        "trailing spaces   ",
        &[920, 2139, 561, 3523, 4004, 4004, 4004],
    ),
    (
        "a  b   c    d",
        &[261, 4004, 271, 4004, 4004, 279, 4004, 4004, 4004, 287],
    ),
    ("\n", &[4004, 13]),
    ("\n\n\n", &[4004, 13, 13, 13]),
    (
        "line one\nline two\r\n\tindented",
        &[1698, 470, 13, 2874, 699, 4028, 13, 12, 461, 2021],
    ),
    ("\t\t tabs \t", &[4004, 12, 12, 259, 596, 4011, 4004, 12]),
    (
        "Once upon a time, there was a little girl.",
        &[2377, 660, 261, 581, 4024, 494, 326, 261, 658, 1208, 4026],
    ),
    (
        "don't, can't; won't!",
        &[
            963, 4033, 4006, 4024, 531, 4033, 4006, 4039, 1837, 4033, 4006, 4056,
        ],
    ),
    (
        "3.14159 and 1,000,000",
        &[
            4004, 4074, 4026, 4066, 4079, 4066, 4080, 4078, 284, 4004, 4066, 4024, 4067, 4067,
            4067, 4024, 4067, 4067, 4067,
        ],
    ),
    ("<s>", &[1790, 4011, 4081]),
    (
        "</s> and <unk> and <0x41>",
        &[
            1790, 4065, 4011, 4081, 284, 1790, 2769, 4081, 284, 1790, 4067, 4038, 4079, 4066, 4081,
        ],
    ),
    (
        "日本語のテキスト",
        &[
            4004, 233, 154, 168, 233, 159, 175, 235, 173, 161, 230, 132, 177, 230, 134, 137, 230,
            133, 176, 230, 133, 188, 230, 134, 139,
        ],
    ),
    (
        "한국어 텍스트",
        &[
            4004, 240, 152, 159, 237, 184, 176, 239, 153, 183, 4004, 240, 136, 144, 239, 141, 167,
            240, 141, 187,
        ],
    ),
    (
        "naïve façade Ärger ß",
        &[
            297, 4007, 198, 178, 314, 538, 198, 170, 634, 4004, 198, 135, 4013, 1242, 4004, 198,
            162,
        ],
    ),
    (
        "e\u{301} combined, é composed",
        &[309, 207, 132, 3156, 916, 4024, 4004, 198, 172, 790, 1112],
    ),
    (
        "க்ஷி नमस्ते",
        &[
            4004, 227, 177, 152, 227, 178, 144, 227, 177, 186, 227, 177, 194, 4004, 227, 167, 171,
            227, 167, 177, 227, 167, 187, 227, 168, 144, 227, 167, 167, 227, 168, 138,
        ],
    ),
    (
        "🚀 to the 🌙",
        &[4004, 243, 162, 157, 131, 282, 263, 4004, 243, 162, 143, 156],
    ),
    (
        "👩\u{200d}👩\u{200d}👧\u{200d}👦 family",
        &[
            4004, 243, 162, 148, 172, 229, 131, 144, 243, 162, 148, 172, 229, 131, 144, 243, 162,
            148, 170, 229, 131, 144, 243, 162, 148, 169, 1924,
        ],
    ),
    (
        "🏳\u{fe0f}\u{200d}🌈",
        &[
            4004, 243, 162, 146, 182, 242, 187, 146, 229, 131, 144, 243, 162, 143, 139,
        ],
    ),
    (
        "\u{a0}no-break\u{3000}ideographic",
        &[
            4004, 197, 163, 2737, 4031, 3803, 498, 230, 131, 131, 510, 1002, 3651, 306,
        ],
    ),
    (
        "\u{feff}byte order mark",
        &[4004, 242, 190, 194, 1508, 568, 1447, 2285],
    ),
    (
        "\u{2581}literal lower block",
        &[4004, 3544, 327, 3366, 3005],
    ),
    (
        "\u{1}\u{7f} control bytes",
        &[4004, 4, 130, 3635, 398, 2945],
    ),
    (
        "fn main() {\n    println!(\"{}\", 1 + 1);\n}\n",
        &[
            2278, 2327, 763, 1184, 13, 4004, 4004, 4004, 3017, 4015, 4009, 2302, 4030, 4087, 4088,
            1699, 4004, 4066, 4004, 46, 4004, 4066, 1523, 13, 4088, 13,
        ],
    ),
    (
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        &[
            261, 4007, 4007, 4007, 4007, 4007, 4007, 4007, 4007, 4007, 4007, 4007, 4007, 4007,
            4007, 4007, 4007, 4007, 4007, 4007, 4007, 4007, 4007, 4007, 4007, 4007, 4007, 4007,
            4007, 4007, 4007, 4007, 4007,
        ],
    ),
    (
        "THE QUICK BROWN FOX",
        &[
            2726, 1352, 4075, 4032, 4046, 4076, 397, 3351, 4047, 4057, 477, 4054, 4089,
        ],
    ),
    (
        "a\u{300}\u{301}\u{302}\u{303}\u{304} zalgo",
        &[
            261, 207, 131, 207, 132, 207, 133, 207, 134, 207, 135, 2372, 327, 2654,
        ],
    ),
];

#[test]
fn demo_model() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo/reference-7m-f16.gguf");
    let gguf = Gguf::open(path).unwrap();
    let tokenizer = Tokenizer::new(Vocabulary::from_gguf(&gguf).unwrap()).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    for &(text, expected) in DEMO {
        assert_eq!(
            tokenizer.encode(text, AddSpecialTokens::TextOnly),
            expected,
            "{text:?}"
        );
        let whole = tokenizer.encode(text, AddSpecialTokens::AsConfigured);
        assert_eq!(whole, [&[1], expected].concat(), "{text:?}");
        assert_eq!(
            tokenizer.decode(&whole),
            text.replace('\u{2581}', " "),
            "{text:?}"
        );
    }
}

/// Overlapping user-defined tokens, two of them named like a control token, and tied scores.
fn small(add_space_prefix: bool) -> Vocabulary {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned()];
    let mut scores = vec![0.0; 258];
    let mut kinds = vec![TokenKind::Unknown, TokenKind::Control];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    kinds.extend([TokenKind::Byte; 256]);
    for (text, score) in [
        ("▁", -5.0),
        ("a", -6.0),
        ("b", -7.0),
        ("c", -8.0),
        ("é", -9.0),
        ("ab", -1.0),
        ("bc", -1.0),
        ("▁a", -2.0),
        ("abc", -3.0),
        ("▁ab", -0.0),
        ("▁abc", 0.0),
        ("aa", -4.0),
        ("aaaa", -2.5),
    ] {
        tokens.push(text.to_owned());
        scores.push(score);
        kinds.push(TokenKind::Normal);
    }
    for text in [
        "<u>",
        "<u><v>",
        "  ",
        "bcb",
        "\n\n",
        "cb<u",
        "é日",
        "</s>",
        "<|im_end|>",
        "<tag>",
    ] {
        tokens.push(text.to_owned());
        scores.push(-1000.0);
        kinds.push(TokenKind::UserDefined);
    }
    Vocabulary {
        model: "llama".to_owned(),
        tokens,
        scores,
        kinds,
        bos: Some(1),
        eos: Some(1),
        unknown: Some(0),
        add_bos: true,
        add_eos: false,
        add_space_prefix,
        ..Vocabulary::default()
    }
}

const WITH_PREFIX: &[(&str, &[u32])] = &[
    ("", &[]),
    ("<u>", &[271]),
    ("a<u>b", &[265, 271, 258, 260]),
    ("a <u> b", &[265, 258, 271, 258, 258, 260]),
    ("<u><u>", &[271, 271]),
    ("<u><v>a<v>", &[272, 265, 62, 120, 64]),
    ("abcb", &[265, 274]),
    ("abcbcb<u>", &[265, 274, 276, 258, 64]),
    ("cb<u><v>", &[258, 261, 260, 272]),
    (
        "a  b   c    ",
        &[265, 273, 258, 260, 273, 258, 258, 261, 273, 273],
    ),
    ("\n\n\n", &[275, 258, 12]),
    ("é日é", &[277, 258, 262]),
    ("a</s>b", &[265, 62, 49, 117, 64, 260]),
    (
        "ab<|im_end|>ab",
        &[267, 62, 126, 107, 111, 97, 103, 112, 102, 126, 64, 263],
    ),
    ("aaaaaaa", &[265, 270, 269]),
    ("abcabcab", &[268, 266, 263]),
    ("<tag>abc<tag> abc", &[280, 268, 280, 258, 268]),
    ("  <u>  ", &[273, 271, 273]),
    ("日é日", &[258, 232, 153, 167, 277]),
];

const WITHOUT_PREFIX: &[(&str, &[u32])] = &[
    ("", &[]),
    ("<u>", &[271]),
    ("a<u>b", &[259, 271, 260]),
    ("a <u> b", &[259, 258, 271, 258, 260]),
    ("<u><u>", &[271, 271]),
    ("<u><v>a<v>", &[272, 259, 62, 120, 64]),
    ("abcb", &[259, 274]),
    ("abcbcb<u>", &[259, 274, 276, 64]),
    ("cb<u><v>", &[261, 260, 272]),
    ("a  b   c    ", &[259, 273, 260, 273, 258, 261, 273, 273]),
    ("\n\n\n", &[275, 12]),
    ("é日é", &[277, 262]),
    ("a</s>b", &[259, 62, 49, 117, 64, 260]),
    (
        "ab<|im_end|>ab",
        &[263, 62, 126, 107, 111, 97, 103, 112, 102, 126, 64, 263],
    ),
    ("aaaaaaa", &[270, 269, 259]),
    ("abcabcab", &[266, 266, 263]),
    ("<tag>abc<tag> abc", &[280, 266, 280, 268]),
    ("  <u>  ", &[273, 271, 273]),
    ("日é日", &[232, 153, 167, 277]),
];

#[test]
fn user_defined_tokens() {
    for (prefix, cases) in [(true, WITH_PREFIX), (false, WITHOUT_PREFIX)] {
        let tokenizer = Tokenizer::new(small(prefix)).unwrap();
        for &(text, expected) in cases {
            let ids = tokenizer.encode(text, AddSpecialTokens::TextOnly);
            assert_eq!(ids, expected, "{text:?}, prefix {prefix}");
        }
    }
}
