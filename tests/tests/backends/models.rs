//! Whole models, in one batch and token by token.

use htc_formats::DType;
use htc_formats::source::ModelFile;
use htc_loader::backend::Reference;
use htc_loader::dial::ActiveSetting;
use htc_loader::kv::KvType;
use htc_loader::linear::RankFraction;
use htc_loader::tokenizer::AddSpecialTokens;
use htc_loader::{Backend, Model, Session};
use htc_tests::logits::largest_difference;
use htc_tests::material::{ARCHITECTURES, architecture};
use htc_tests::npy::Array;
use htc_tests::{Scratch, TinyExperts, TinyModel, htc, material};

use super::Named;

struct Case<'a> {
    file: &'a ModelFile,
    tokens: &'a [u32],
    kv_type: KvType,
    setting: ActiveSetting,
}

impl Case<'_> {
    fn logits<B: Backend>(&self, mut backend: B) -> [Vec<f32>; 2] {
        let model = Model::load(self.file.clone(), &mut backend).unwrap();
        let n = self.tokens.len();
        let session = Session::with_kv_type(model, backend, n, self.kv_type);
        let mut session = session.unwrap();
        session.set(self.setting);
        session.forward(self.tokens).unwrap();
        let batched = session.logits(0, n).unwrap().to_vec();
        session.reset();
        let mut single = Vec::new();
        for &token in self.tokens {
            single.extend_from_slice(session.step(&[token]).unwrap());
        }
        [batched, single]
    }

    fn assert_agrees<B: Backend>(&self, backends: Vec<Named<B>>, bound: f64) {
        let [expected, again] = self.logits(Reference);
        let own = largest_difference(&again, &expected);
        assert!(own < 1e-6, "the oracle differs from itself by {own:.2e}");
        for (name, backend) in backends {
            for found in self.logits(backend) {
                let difference = largest_difference(&found, &expected);
                let (path, kv_type, setting) = (&self.file.path, self.kv_type, self.setting);
                assert!(
                    difference < bound,
                    "{name}, {}, {kv_type:?}, {setting:?}: {difference:.2e}",
                    path.display()
                );
            }
        }
    }
}

const FLOAT: f64 = 1e-4;

/// Returns the tolerance for f16 keys and values, which may round differently from the oracle: the
/// effect is at most that of rounding all of them.
fn of_f16_keys(file: &ModelFile, tokens: &[u32]) -> f64 {
    let [exact, rounded] = [KvType::F32, KvType::F16].map(|kv_type| {
        let setting = ActiveSetting::FULL;
        let case = Case {
            file,
            tokens,
            kv_type,
            setting,
        };
        let [batched, _] = case.logits(Reference);
        batched
    });
    let bound = largest_difference(&rounded, &exact);
    assert!(bound < 0.05, "{}: {bound:.2e}", file.path.display());
    bound.max(FLOAT)
}

/// Weights in blocks are multiplied with 8-bit activations; random weights amplify the rounding.
const BLOCKS: f64 = 0.3;

pub fn architectures<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    for name in ARCHITECTURES {
        let folder = architecture(name);
        let tokens = Array::read(&folder.join("tokens.npy")).tokens();
        let file = ModelFile::open(folder.join("model.gguf")).unwrap();
        let of_f16 = of_f16_keys(&file, &tokens);
        for (kv_type, bound) in [(KvType::F32, FLOAT), (KvType::F16, of_f16)] {
            let case = Case {
                file: &file,
                tokens: &tokens,
                kv_type,
                setting: ActiveSetting::FULL,
            };
            case.assert_agrees(backends(), bound);
        }
    }
}

pub fn demo<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let file = ModelFile::open(material::demo("reference-7m-f16.gguf")).unwrap();
    let model = Model::bind(file.clone()).unwrap();
    let text = "Alice was beginning to get very tired of sitting by her sister";
    let tokens = model
        .tokenizer()
        .unwrap()
        .encode(text, AddSpecialTokens::Prompt);
    let of_f16 = of_f16_keys(&file, &tokens);
    for (kv_type, bound) in [(KvType::F32, FLOAT), (KvType::F16, of_f16)] {
        let case = Case {
            file: &file,
            tokens: &tokens,
            kv_type,
            setting: ActiveSetting::FULL,
        };
        case.assert_agrees(backends(), bound);
    }
}

/// Mixtures of experts, as floats and in blocks.
pub fn experts<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let scratch = Scratch::new();
    let tokens: Vec<u32> = (0..40).map(|i| 3 + i * 7 % 290).collect();
    for (dtype, bound) in [(DType::F32, FLOAT), (DType::Q8_0, BLOCKS)] {
        let tiny = TinyModel {
            experts: Some(TinyExperts {
                count: 5,
                used: 2,
                ffn: 64,
            }),
            dtype,
            ..TinyModel::default()
        };
        let path = scratch.file(&format!("{dtype}.gguf"), tiny.bytes());
        let case = Case {
            file: &ModelFile::open(&path).unwrap(),
            tokens: &tokens,
            kv_type: KvType::F32,
            setting: ActiveSetting::FULL,
        };
        case.assert_agrees(backends(), bound);
    }
}

/// Low rank and shared bases, as floats and in blocks, at the full rank and at parts of it.
pub fn factorised<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        width: 64,
        ffn: 128,
        ..TinyModel::default()
    };
    let source = scratch.file("model.gguf", tiny.bytes());
    let tokens: Vec<u32> = (0..40).map(|i| 3 + i * 7 % 290).collect();
    for (method, projections) in [
        ("low-rank", "q,k,v,o,gate,up,down"),
        ("shared-basis", "q,k,v,gate,up"),
    ] {
        for (factor_type, bound) in [("f32", FLOAT), ("q8_0", BLOCKS)] {
            let artifact = scratch.path(&format!("{method}-{factor_type}.htz"));
            let run = htc!["compile", &source, "-o", &artifact, "--method", method];
            let rank = [
                "--projections",
                projections,
                "--rank",
                "32",
                "--factor-type",
                factor_type,
            ];
            run.args(rank).run().assert_ok();
            let file = ModelFile::open(&artifact).unwrap();
            for fraction in [1.0, 0.5, 0.3] {
                let case = Case {
                    file: &file,
                    tokens: &tokens,
                    kv_type: KvType::F32,
                    setting: ActiveSetting {
                        rank: RankFraction::new(fraction).unwrap(),
                        ..ActiveSetting::FULL
                    },
                };
                case.assert_agrees(backends(), bound);
            }
        }
    }
}

pub fn coded<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        output: true,
        ffn: 192,
        ..TinyModel::default()
    };
    let source = scratch.file("model.gguf", tiny.bytes());
    let text = scratch.file("words.txt", material::words(20_000));
    let tokens: Vec<u32> = (0..40).map(|i| 3 + i * 7 % 290).collect();
    let of = [
        &["--method", "quantise", "--target-size", "90000"][..],
        &["--target-size", "130000", "--planes", "2"],
    ];
    for (index, options) in of.into_iter().enumerate() {
        let artifact = scratch.path(&format!("{index}.htz"));
        htc!["compile", &source, "-o", &artifact, "--calibration", &text]
            .args(["--context", "32", "--calibration-tokens", "2048"])
            .args(["--effort", "fast"])
            .args(options)
            .run()
            .assert_ok();
        let file = ModelFile::open(&artifact).unwrap();
        let coded = file.tensors.iter().filter(|tensor| tensor.codes.is_some());
        assert!(coded.count() > 8, "{options:?}");
        let all = Model::bind(file.clone()).unwrap().dial().refinements();
        assert_eq!(all > 2, index == 1, "{all}");
        let mut asked = vec![0, all / 2, all];
        asked.dedup();
        for refinements in asked {
            let case = Case {
                file: &file,
                tokens: &tokens,
                kv_type: KvType::F32,
                setting: ActiveSetting {
                    refinements,
                    ..ActiveSetting::FULL
                },
            };
            case.assert_agrees(backends(), BLOCKS);
        }
    }
}
