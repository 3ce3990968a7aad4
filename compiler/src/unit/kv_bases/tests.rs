use std::path::{Path, PathBuf};
use std::sync::Arc;

use htc_formats::htz::Digest;
use htc_formats::source::ModelFile;
use htc_kernels::cpu::Cpu;
use htc_loader::exec::{Point, Tap};
use htc_loader::kv::KvType;
use htc_loader::{Model, Session};

use super::*;
use crate::calibrate::Calibration;
use crate::calibrate::tests;
use crate::event::Progress;
use crate::math::Host;
use crate::options::CalibrationOptions;

/// Tolerance for rounded bases, relative to the energy of a head.
const ROUNDED: f64 = 2e-3;

#[derive(Default)]
struct LayerVectors([Vec<f32>; 3]);

impl Tap for LayerVectors {
    fn see(&mut self, _: usize, point: Point, x: &[f32]) {
        match point {
            Point::Queries => self.0[0].extend(x),
            Point::Keys => self.0[1].extend(x),
            Point::Values => self.0[2].extend(x),
            _ => {}
        }
    }
}

fn seen(model: &Arc<Model>, calibration: &Calibration) -> Vec<LayerVectors> {
    let hyper = model.hyper().clone();
    let cpu = Cpu::with_threads(1).unwrap();
    let context = calibration.context;
    let session = Session::with_kv_type(Arc::clone(model), cpu.into(), context, KvType::F32);
    let mut session = session.unwrap();
    let mut seen: Vec<LayerVectors> = (0..hyper.layers).map(|_| LayerVectors::default()).collect();
    for window in calibration.windows.iter() {
        let mut x = vec![0.0; window.len() * hyper.width];
        session.reset();
        session.embed(window, &mut x).unwrap();
        for (layer, seen) in seen.iter_mut().enumerate() {
            session.reset();
            session.block(layer, &mut x, seen).unwrap();
        }
    }
    seen
}

/// Returns the vectors `[count, n]` of neighbouring heads, from rows of `heads` heads.
fn of_heads(x: &[f32], size: usize, heads: usize, first: usize, count: usize) -> Vec<Vec<f64>> {
    let rows = x.chunks_exact(heads * size);
    let parts = rows.flat_map(|row| row[first * size..][..count * size].chunks_exact(size));
    parts
        .map(|part| part.iter().map(|&x| f64::from(x)).collect())
        .collect()
}

fn assert_diagonalises(label: &str, vectors: &[Vec<f64>], basis: &[f32], energies: &[f32]) {
    let n = energies.len();
    let mut moment = vec![0.0; n * n];
    let mut total = 0.0;
    for x in vectors {
        let of_row =
            |row: &[f32]| -> f64 { row.iter().zip(x).map(|(&u, x)| f64::from(u) * x).sum() };
        let y: Vec<f64> = basis.chunks_exact(n).map(of_row).collect();
        for (i, a) in y.iter().enumerate() {
            for (j, b) in y.iter().enumerate() {
                moment[i * n + j] += a * b;
            }
        }
        total += x.iter().map(|x| x * x).sum::<f64>();
    }
    for i in 0..n {
        for j in 0..n {
            let expected = if i == j { f64::from(energies[i]) } else { 0.0 };
            let found = moment[i * n + j] / total;
            let is_close = (found - expected).abs() < ROUNDED;
            assert!(is_close, "{label}: {found} for {expected} at {i}, {j}");
        }
    }
    assert!(
        energies.is_sorted_by(|a, b| a >= b),
        "{label}: {energies:?}"
    );
    let sum: f64 = energies.iter().map(|&energy| f64::from(energy)).sum();
    assert!((sum - 1.0).abs() < 1e-5, "{label}: {sum}");
}

/// Returns the maximum deviation; the largest entry of each row must be positive.
fn orthonormality(label: &str, basis: &[f32], n: usize) -> f64 {
    let mut worst = 0.0f64;
    for (i, a) in basis.chunks_exact(n).enumerate() {
        let largest = a.iter().copied().fold(
            0.0f32,
            |best, x| if x.abs() > best.abs() { x } else { best },
        );
        assert!(largest > 0.0, "{label}: row {i}");
        for (j, b) in basis.chunks_exact(n).enumerate() {
            let product: f64 = a
                .iter()
                .zip(b)
                .map(|(&a, &b)| f64::from(a) * f64::from(b))
                .sum();
            worst = worst.max((product - f64::from(u8::from(i == j))).abs());
        }
    }
    worst
}

fn numbers(hyper: &HyperParameters, layer: usize, made: &[(Role, Vec<u8>)]) -> [Vec<f32>; 4] {
    let expected = stored_tensors(hyper, layer);
    let of = |at: usize| {
        let (role, bytes) = &made[at];
        assert_eq!(
            (*role, bytes.len() as u64),
            (expected[at].role, expected[at].bytes())
        );
        let mut values = vec![0.0; expected[at].rows * expected[at].cols];
        block::decode(expected[at].dtype, bytes, &mut values).unwrap();
        values
    };
    [0, 1, 2, 3].map(of)
}

/// Returns the largest deviation from orthonormality.
fn check(
    name: &str,
    model: &Arc<Model>,
    calibration: &Calibration,
    order: Option<&ChannelPermutation>,
) -> f64 {
    let hyper = model.hyper().clone();
    let (size, heads) = (hyper.head_size, hyper.kv_heads);
    let group = hyper.heads / heads;
    let mut worst = 0.0f64;
    for (layer, LayerVectors([queries, keys, values])) in
        seen(model, calibration).iter().enumerate()
    {
        let made = layer_tensors(&calibration.layers[layer], &hyper, layer, order, &Host).unwrap();
        let roles_made: Vec<Role> = made.iter().map(|(role, _)| *role).collect();
        assert_eq!(roles_made, roles(layer));
        let [key_basis, key_energies, value_basis, value_energies] = numbers(&hyper, layer, &made);
        for head in 0..heads {
            let label = format!("{name}, layer {layer}, head {head}");
            let square = head * size * size..(head + 1) * size * size;
            let row = head * size..(head + 1) * size;
            let mut together = of_heads(queries, size, hyper.heads, head * group, group);
            together.extend(of_heads(keys, size, heads, head, 1));
            let basis = &key_basis[square.clone()];
            assert_diagonalises(&label, &together, basis, &key_energies[row.clone()]);
            worst = worst.max(orthonormality(&label, basis, size));
            let mut values = of_heads(values, size, heads, head, 1);
            if let Some(order) = order {
                let projection = ProjectionKind::V;
                let places = order
                    .outputs(MatrixId::Projection { layer, projection })
                    .unwrap();
                let places = &places[row.clone()];
                for value in &mut values {
                    let moved = places.iter().map(|&at| value[at as usize - head * size]);
                    *value = moved.collect();
                }
            }
            let basis = &value_basis[square];
            assert_diagonalises(&label, &values, basis, &value_energies[row]);
            worst = worst.max(orthonormality(&label, basis, size));
        }
    }
    worst
}

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn calibrated(
    model: &Arc<Model>,
    text: &Path,
    cache: &Path,
    (context, tokens): (usize, usize),
) -> Calibration {
    let mut options = CalibrationOptions::new(text.to_owned());
    options.context = Some(context);
    options.tokens = Some(tokens);
    options.cache = Some(cache.to_owned());
    let source = Digest::of_bytes(model.file().path.as_os_str().as_encoded_bytes());
    tests::calibrated(model, source, &options, 1, Progress::silent()).unwrap()
}

/// Heads of 8, 12 and 16 values, query and key norms, sliding windows with a separate rotary
/// embedding, biases and partial rotation; each also with permuted values.
#[test]
fn bases_diagonalise_moments_for_every_architecture() {
    let scratch = tempfile::tempdir().unwrap();
    let text = scratch.path().join("text.txt");
    let words = [
        "the", "rabbit", "went", "down", "a", "well", "and", "saw", "more",
    ];
    let words: Vec<&str> = (0..3000)
        .map(|at| words[at * at % 11 % words.len()])
        .collect();
    std::fs::write(&text, words.join(" ")).unwrap();
    let mut sizes = Vec::new();
    for folder in std::fs::read_dir(root("tests/fixtures/architectures")).unwrap() {
        let path = folder.unwrap().path().join("model.gguf");
        let model = Arc::new(Model::bind(ModelFile::open(&path).unwrap()).unwrap());
        let calibration = calibrated(&model, &text, scratch.path(), (32, 640));
        let name = path.display().to_string();
        check(&name, &model, &calibration, None);
        let order =
            ChannelPermutation::compute(model.file(), &calibration, 1, Progress::silent()).unwrap();
        check(&name, &model, &calibration, Some(&order));
        sizes.push(model.hyper().head_size);
    }
    sizes.sort_unstable();
    assert!(
        sizes.len() == 9 && sizes.contains(&12) && sizes.contains(&8),
        "{sizes:?}"
    );
}

/// The reader's tolerance is a hundredth.
#[test]
fn stored_bases_of_a_trained_model_are_orthonormal() {
    let scratch = tempfile::tempdir().unwrap();
    let model = root("assets/demo/reference-7m-f16.gguf");
    let model = Arc::new(Model::open(model).unwrap());
    assert!(model.hyper().kv_heads > 1);
    let text = root("assets/demo/alice.txt");
    let calibration = calibrated(&model, &text, scratch.path(), (64, 1024));
    let worst = check("demo", &model, &calibration, None);
    println!("orthonormal to {worst:.2e}");
    assert!(worst > 0.0 && worst < 1e-3, "{worst}");
    let hyper = model.hyper();
    let size = hyper.head_size as u64;
    let of_head = 2 * (2 * size * size + 4 * size);
    assert_eq!(layer_bytes(hyper), hyper.kv_heads as u64 * of_head);
}

#[test]
fn as_stored_rounds_like_f16() {
    for step in 0..20_000 {
        let number = 0.01 + f64::from(step) * 4.951e-5;
        let mut bytes = [0; 2];
        block::encode(BASIS, &[number as f32], &mut bytes).unwrap();
        let mut stored = [0.0];
        block::decode(BASIS, &bytes, &mut stored).unwrap();
        assert_eq!(round_to_f16(number), stored[0], "{number}");
        assert_eq!(round_to_f16(-number), -stored[0], "{number}");
    }
}
