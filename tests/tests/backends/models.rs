//! Whole models, read in one batch and token by token.

use std::path::{Path, PathBuf};

use htc_formats::source::ModelFile;
use htc_loader::backend::Reference;
use htc_loader::kv::KvType;
use htc_loader::linear::RankFraction;
use htc_loader::tokenizer::AddSpecial;
use htc_loader::{Backend, Model, Session};
use htc_tests::logits::largest_difference;
use htc_tests::npy::Array;
use htc_tests::{Scratch, TinyModel, htc, material};

use super::Named;

pub const ARCHITECTURES: [&str; 9] = [
    "llama",
    "llama-linear-rope",
    "llama3-rope",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
];

/// The folder of a small model and its tokens.
pub fn fixture(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/architectures");
    root.join(name)
}

/// A model, what it reads and how.
struct Case<'a> {
    file: &'a ModelFile,
    tokens: &'a [u32],
    kv_type: KvType,
    fraction: f32,
}

impl Case<'_> {
    /// Logits of all positions: all tokens in one batch, and one by one.
    fn logits<B: Backend>(&self, mut backend: B) -> [Vec<f32>; 2] {
        let model = Model::load(self.file.clone(), &mut backend).unwrap();
        let n = self.tokens.len();
        let session = Session::with_kv_type(model, backend, n, self.kv_type);
        let mut session = session.unwrap();
        session.set_rank_fraction(RankFraction::new(self.fraction).unwrap());
        session.forward(self.tokens).unwrap();
        let batched = session.logits(0, n).unwrap().to_vec();
        session.reset();
        let mut single = Vec::new();
        for &token in self.tokens {
            single.extend_from_slice(session.step(&[token]).unwrap());
        }
        [batched, single]
    }

    /// Fails where the logits of a backend are further from the oracle's than `bound`, in their
    /// standard deviations.
    fn agrees<B: Backend>(&self, backends: Vec<Named<B>>, bound: f64) {
        let [expected, again] = self.logits(Reference);
        let own = largest_difference(&again, &expected);
        assert!(own < 1e-6, "the oracle differs from itself by {own:.2e}");
        for (name, backend) in backends {
            for found in self.logits(backend) {
                let difference = largest_difference(&found, &expected);
                let (path, kv_type, fraction) = (&self.file.path, self.kv_type, self.fraction);
                assert!(
                    difference < bound,
                    "{name}, {}, {kv_type:?}, fraction {fraction}: {difference:.2e}",
                    path.display()
                );
            }
        }
    }
}

/// Sums in float32 against sums in float64.
const FLOAT: f64 = 1e-4;

/// The same where keys and values are float16 and may be rounded to the neighbour of what the oracle
/// rounds to.
const F16_KV: f64 = 2e-3;

/// Weights in blocks meet activations of eight bits, rounded before either factor; random weights
/// amplify that from layer to layer. A block or a scale out of place differs by one and more.
const BLOCKS: f64 = 0.3;

pub fn architectures<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    for name in ARCHITECTURES {
        let folder = fixture(name);
        let tokens = Array::read(&folder.join("tokens.npy")).tokens();
        let file = ModelFile::open(folder.join("model.gguf")).unwrap();
        for (kv_type, bound) in [(KvType::F32, FLOAT), (KvType::F16, F16_KV)] {
            let case = Case {
                file: &file,
                tokens: &tokens,
                kv_type,
                fraction: 1.0,
            };
            case.agrees(backends(), bound);
        }
    }
}

pub fn demo<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let file = ModelFile::open(material::demo("reference-7m-f16.gguf")).unwrap();
    let model = Model::bind(file.clone()).unwrap();
    let text = "Alice was beginning to get very tired of sitting by her sister";
    let tokens = model.tokenizer().unwrap().encode(text, AddSpecial::Prompt);
    for (kv_type, bound) in [(KvType::F32, FLOAT), (KvType::F16, F16_KV)] {
        let case = Case {
            file: &file,
            tokens: &tokens,
            kv_type,
            fraction: 1.0,
        };
        case.agrees(backends(), bound);
    }
}

/// Low rank and shared bases, as numbers and in blocks, at the whole rank and a part of it.
pub fn factorised<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        width: 64,
        ffn: 128,
        ..TinyModel::default()
    };
    let source = scratch.file("model.gguf", tiny.bytes());
    let tokens: Vec<u32> = (0..40).map(|i| 3 + i * 7 % 290).collect();
    for (method, slots) in [("gp", "q,k,v,o,gate,up,down"), ("grc", "q,k,v,gate,up")] {
        for (factor_type, bound) in [("f32", FLOAT), ("q8_0", BLOCKS)] {
            let artifact = scratch.path(&format!("{method}-{factor_type}.htz"));
            let run = htc!["compile", &source, "-o", &artifact, "--method", method];
            let rank = [
                "--slots",
                slots,
                "--rank",
                "32",
                "--factor-type",
                factor_type,
            ];
            run.args(rank).run().ok();
            let file = ModelFile::open(&artifact).unwrap();
            for fraction in [1.0, 0.5, 0.3] {
                let case = Case {
                    file: &file,
                    tokens: &tokens,
                    kv_type: KvType::F32,
                    fraction,
                };
                case.agrees(backends(), bound);
            }
        }
    }
}
