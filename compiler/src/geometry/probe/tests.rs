use htc_formats::model::InputGroup;

use super::*;
use crate::math::{SvdMethod, Weight, low_rank};
use crate::system::random::Rng;

#[derive(Default)]
struct Stored {
    tensors: Vec<TensorEntry>,
    bytes: Vec<u8>,
}

impl Stored {
    fn push(&mut self, role: Role, dtype: DType, cols: usize, values: &[f32]) -> Vec<f32> {
        let rows = values.len() / cols;
        let mut entry = TensorEntry::new(role.to_string(), role, dtype, rows, cols);
        entry.offset = self.bytes.len() as u64;
        entry.length = entry.stored_bytes().unwrap();
        let mut bytes = vec![0; entry.length as usize];
        block::encode(dtype, values, &mut bytes).unwrap();
        let mut decoded = vec![0.0; values.len()];
        block::decode(dtype, &bytes, &mut decoded).unwrap();
        self.bytes.extend(bytes);
        self.tensors.push(entry);
        decoded
    }

    /// Stores a part of a projection of layer 3.
    fn part(&mut self, projection: ProjectionKind, part: Part, cols: usize, values: &[f32]) {
        self.push(linear(projection, part), DType::F32, cols, values);
    }

    /// Returns the spectrum of a projection of layer 3.
    fn spectrum(&self, projection: ProjectionKind) -> SpectrumRecord {
        of(&self.spectra(3, 1), projection)
    }

    fn spectra(&self, layer: usize, threads: usize) -> Vec<SpectrumRecord> {
        let bytes = |entry: &TensorEntry| {
            let start = entry.offset as usize;
            &self.bytes[start..start + entry.length as usize]
        };
        spectra(&self.tensors, bytes, layer, threads).unwrap()
    }
}

fn of(spectra: &[SpectrumRecord], projection: ProjectionKind) -> SpectrumRecord {
    let mut spectra = spectra.iter();
    *spectra
        .find(|spectrum| spectrum.id.projection() == Some(projection))
        .unwrap()
}

fn linear(projection: ProjectionKind, part: Part) -> Role {
    let layer = 3;
    Role::Linear {
        layer,
        projection,
        part,
    }
}

fn normal(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = Rng(seed);
    (0..count).map(|_| rng.normal() as f32).collect()
}

fn rows(values: &[f32], cols: usize) -> Vec<f64> {
    let square = |row: &[f32]| row.iter().map(|&v| f64::from(v).powi(2)).sum();
    values.chunks(cols).map(square).collect()
}

fn columns(values: &[f32], cols: usize) -> Vec<f64> {
    let column = |j: usize| values.iter().skip(j).step_by(cols);
    let square = |j| column(j).map(|&v| f64::from(v).powi(2)).sum();
    (0..cols).map(square).collect()
}

#[track_caller]
fn is(found: &SpectrumRecord, energies: &[f64], tolerance: f64) {
    assert_eq!(found.components, energies.len() as u64);
    let largest = energies.iter().copied().fold(0.0, f64::max).sqrt();
    let energy: f64 = energies.iter().sum();
    for (found, expected) in [(found.largest, largest), (found.energy, energy)] {
        let off = (found / expected - 1.0).abs();
        assert!(off <= tolerance, "{found} against {expected}: {off:e}");
    }
}

#[test]
fn factors_without_a_gauge_have_singular_values_as_weights() {
    let (m, n, rank) = (40, 24, 7);
    let values = normal(1, m * n);
    let weight = Weight {
        rows: m,
        cols: n,
        values: &values,
    };
    let factors = low_rank(weight, rank, SvdMethod::Svd).unwrap();
    let mut stored = Stored::default();
    stored.part(ProjectionKind::O, Part::A, n, &factors.a);
    stored.part(ProjectionKind::O, Part::B, rank, &factors.b);
    let found = stored.spectra(3, 2);
    let squared: Vec<f64> = factors.singular_values[..rank]
        .iter()
        .map(|v| v * v)
        .collect();
    is(&of(&found, ProjectionKind::O), &squared, 1e-6);
}

#[test]
fn residual_components_follow_the_rows_of_the_base() {
    let mut stored = Stored::default();
    let base = [3.0, 4.0, 0.0, 5.0, 12.0, 0.0];
    stored.part(ProjectionKind::K, Part::Weight, 3, &base);
    let (a, b) = ([2.0, 0.0, 0.0], [0.0, 7.0]);
    stored.part(ProjectionKind::K, Part::ResidualA, 3, &a);
    stored.part(ProjectionKind::K, Part::ResidualB, 1, &b);
    let found = stored.spectrum(ProjectionKind::K);
    assert_eq!(found.components, 3);
    assert_eq!((found.largest, found.energy), (14.0, 25.0 + 169.0 + 196.0));
}

#[test]
fn rows_of_a_dense_projection_are_components() {
    let mut stored = Stored::default();
    let values = [3.0, 4.0, 0.0, 5.0, 12.0, 0.0];
    stored.part(ProjectionKind::K, Part::Weight, 3, &values);
    stored.part(ProjectionKind::K, Part::Bias, 2, &[9.0, 9.0]);
    let (layer, projection, part) = (2, ProjectionKind::K, Part::Weight);
    let other = Role::Linear {
        layer,
        projection,
        part,
    };
    stored.push(other, DType::F32, 1, &[7.0]);
    let found = stored.spectrum(ProjectionKind::K);
    let id = MatrixId::Projection {
        layer: 3,
        projection: ProjectionKind::K,
    };
    assert_eq!((found.id, found.components), (id, 2));
    assert_eq!((found.largest, found.energy), (13.0, 25.0 + 169.0));
    assert_eq!(of(&stored.spectra(2, 1), ProjectionKind::K).energy, 49.0);
}

#[test]
fn spectra_match_decoded_values_for_every_form_and_type() {
    for dtype in [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q8_0,
        DType::Q4_0,
    ] {
        let (width, out, rank) = (96, 64, 32);
        let mut stored = Stored::default();
        let layer = 3;
        let group = InputGroup::Qkv;
        let basis = Role::Basis { layer, group };
        let basis = stored.push(basis, dtype, width, &normal(1, rank * width));
        let role = linear(ProjectionKind::V, Part::Projected);
        let projected = stored.push(role, dtype, rank, &normal(2, out * rank));
        let role = linear(ProjectionKind::K, Part::Weight);
        let dense = stored.push(role, dtype, width, &normal(3, out * width));
        let role = linear(ProjectionKind::Down, Part::A);
        let a = stored.push(role, dtype, width, &normal(4, rank * width));
        let role = linear(ProjectionKind::Down, Part::B);
        let b = stored.push(role, dtype, rank, &normal(5, out * rank));
        let found = stored.spectra(3, 3);
        let product = |a: &[f32], b: &[f32]| -> Vec<f64> {
            let pairs = rows(a, width).into_iter().zip(columns(b, rank));
            pairs.map(|(a, b)| a * b).collect()
        };
        is(
            &of(&found, ProjectionKind::V),
            &product(&basis, &projected),
            1e-13,
        );
        is(&of(&found, ProjectionKind::K), &rows(&dense, width), 1e-13);
        is(&of(&found, ProjectionKind::Down), &product(&a, &b), 1e-13);
    }
}

#[test]
fn spectra_do_not_depend_on_the_number_of_threads() {
    let (width, out, rank) = (1024, 3000, 800);
    let mut stored = Stored::default();
    let a = normal(1, rank * width);
    let b = normal(2, out * rank);
    stored.part(ProjectionKind::Up, Part::A, width, &a);
    stored.part(ProjectionKind::Up, Part::B, rank, &b);
    let one = stored.spectra(3, 1);
    let pairs = rows(&a, width).into_iter().zip(columns(&b, rank));
    let energies: Vec<f64> = pairs.map(|(a, b)| a * b).collect();
    is(&of(&one, ProjectionKind::Up), &energies, 1e-12);
    for threads in [2, 5] {
        assert_eq!(stored.spectra(3, threads), one);
    }
}

#[test]
fn agree_tolerates_only_rounding() {
    let one = SpectrumRecord {
        id: MatrixId::Projection {
            layer: 3,
            projection: ProjectionKind::Q,
        },
        components: 5,
        largest: 2.0,
        energy: 7.0,
    };
    assert!(agree(&one, &one));
    let other = |change: &dyn Fn(&mut SpectrumRecord)| {
        let mut other = one;
        change(&mut other);
        agree(&one, &other) && agree(&other, &one)
    };
    assert!(other(&|s| s.energy *= 1.0 + 5e-10));
    assert!(!other(&|s| s.energy *= 1.0 + 2e-9));
    assert!(!other(&|s| s.largest *= 1.0 - 2e-9));
    assert!(!other(&|s| s.components = 6));
    for damaged in [f64::NAN, f64::INFINITY, 0.0] {
        assert!(!other(&|s| s.largest = damaged));
        assert!(!other(&|s| s.energy = damaged));
    }
}
