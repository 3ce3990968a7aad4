use std::path::{Path, PathBuf};
use std::sync::Arc;

use faer::Mat;
use htc_formats::bands::{
    Code, CodeKind, Codes, ColumnGroupWriter, ColumnGroups, TILE_ROWS, rotate,
};
use htc_formats::block;
use htc_formats::htz::Digest;
use htc_formats::model::ProjectionKind;
use htc_loader::Model;

use super::outputs::row_feedback;
use super::*;
use crate::calibrate::Calibration;
use crate::calibrate::tests::calibrated;
use crate::codes::BlockCoder;
use crate::event::Progress;
use crate::gradient::{Gradients, gradients};
use crate::math::codes::{ColumnEnergies, QuantisationGuide, RowFeedback, TileCoder};
use crate::math::{ErrorFeedback, Gauge, Host, SvdMethod, Weight};
use crate::options::{CalibrationOptions, Effort, Treatment};

const SOURCE: Digest = Digest([7; 32]);

fn demo(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
    root.join(name)
}

#[test]
fn down_projections_of_experts_are_decomposed_like_dense_ones() {
    for projection in [ProjectionKind::Down, ProjectionKind::ExpertDown(7)] {
        let path = |gauge| decomposition_path(Some(projection), &gauge);
        assert_eq!(path(Gauge::None), SvdMethod::Svd);
        assert_eq!(
            path(Gauge::activation(&[1.0, 4.0], 1.0).unwrap()),
            SvdMethod::Auto
        );
    }
}

struct Measured {
    model: Arc<Model>,
    calibration: Calibration,
    gradients: Gradients,
}

impl Measured {
    fn new(cache: &Path) -> Measured {
        let model = Model::open(demo("reference-7m-f16.gguf")).unwrap();
        let mut options = CalibrationOptions::new(demo("alice.txt"));
        options.context = Some(64);
        options.tokens = Some(2048);
        options.cache = Some(cache.to_owned());
        let model = Arc::new(model);
        let watch = Progress::silent;
        Measured {
            calibration: calibrated(&model, SOURCE, &options, 1, watch()).unwrap(),
            gradients: gradients(&model, SOURCE, &options, 1024, 1, watch()).unwrap(),
            model,
        }
    }

    fn projection(&self, layer: usize, projection: ProjectionKind) -> ProjectionLoss {
        let (matrix, site) = (
            MatrixId::Projection { layer, projection },
            projection.input(),
        );
        let source = PermutedSource::new(self.model.file(), None);
        let place = CalibratedInput::Site { layer, site };
        let mut treatment =
            ModelTreatment::new(Treatment::default(), Some(&self.calibration), &Host);
        treatment.gradients = Some(&self.gradients);
        let feedback = treatment.feedback(place, treatment.damping(Some(matrix)));
        let along_rows = row_feedback(&source, matrix, Some(place), &treatment);
        let tensor = source.tensor(matrix.weight()).unwrap();
        let (rows, cols) = (tensor.rows, tensor.cols);
        let mut values = vec![0.0; rows * cols];
        source.decode(tensor, 0..rows, &mut values).unwrap();
        let of_outputs = self.gradients.for_matrix(matrix).unwrap();
        let [block] = &of_outputs.blocks[..] else {
            panic!("{matrix}: not all of its outputs together");
        };
        let inputs = self.calibration.inputs(place).lower();
        let lower = |i: usize, j: usize| {
            let (i, j) = (i.max(j), i.min(j));
            f64::from(block.lower[i * (i + 1) / 2 + j])
        };
        ProjectionLoss {
            name: format!("layer {layer}, {projection}"),
            rows,
            cols,
            values,
            inputs: Mat::from_fn(cols, cols, |i, j| inputs[i.max(j) * cols + i.min(j)]),
            outputs: Mat::from_fn(rows, rows, lower),
            along_columns: feedback.unwrap().unwrap(),
            along_rows: along_rows.unwrap().unwrap(),
        }
    }
}

struct ProjectionLoss {
    name: String,
    rows: usize,
    cols: usize,
    values: Vec<f32>,
    /// Undamped.
    inputs: Mat<f64>,
    outputs: Mat<f64>,
    along_columns: Arc<ErrorFeedback>,
    along_rows: RowFeedback,
}

impl ProjectionLoss {
    fn weight(&self) -> Weight<'_> {
        Weight {
            rows: self.rows,
            cols: self.cols,
            values: &self.values,
        }
    }

    fn lost(&self, stored: &[f32]) -> f64 {
        let errors = Mat::from_fn(self.rows, self.cols, |i, j| {
            let at = i * self.cols + j;
            f64::from(self.values[at]) - f64::from(stored[at])
        });
        let (left, right) = (&self.outputs * &errors, &errors * &self.inputs);
        let all = (0..self.rows).flat_map(|i| (0..self.cols).map(move |j| (i, j)));
        all.map(|at| left[at] * right[at]).sum()
    }

    fn column_group_loss(&self, codes: &Codes, guide: QuantisationGuide<'_>, fitted: bool) -> f64 {
        let mut values = self.values.clone();
        if codes.is_rotated() {
            values.chunks_exact_mut(self.cols).for_each(rotate);
        }
        let guide = guide.for_codes(codes).unwrap();
        let mut energies = ColumnEnergies::new(self.cols);
        for row in values.chunks_exact(self.cols) {
            energies.add_row(row).unwrap();
        }
        let columns = energies.scales(codes, guide.columns).unwrap();
        let mut packer = ColumnGroupWriter::new(codes, self.rows);
        columns.pack(&mut packer).unwrap();
        let mut coder = TileCoder::new(codes, &columns, guide);
        for (strip, values) in values.chunks(TILE_ROWS * self.cols).enumerate() {
            let rows = Weight {
                rows: values.len() / self.cols,
                cols: self.cols,
                values,
            };
            let coded = coder.quantise(strip, rows).unwrap();
            coded.pack(strip, &mut packer).unwrap();
        }
        if fitted {
            coder.refitted_column_scales().pack(&mut packer).unwrap();
        }
        let bytes = packer.finish();
        let bands = ColumnGroups::new(codes, self.rows, &bytes).unwrap();
        let mut stored = vec![0.0; values.len()];
        for (row, stored) in stored.chunks_exact_mut(self.cols).enumerate() {
            bands.decode_row(row, stored).unwrap();
        }
        self.lost(&stored)
    }

    fn gguf_loss(&self, dtype: DType, rows: Option<&RowFeedback>, sweeps: usize) -> f64 {
        let mut bytes = vec![0; dtype.matrix_bytes(self.rows, self.cols).unwrap()];
        let mut stored = vec![0.0; self.values.len()];
        let mut coder = BlockCoder::new(dtype, &self.along_columns, rows, sweeps);
        coder.code(self.weight(), &mut bytes, &mut stored).unwrap();
        self.lost(&stored)
    }
}

/// Asserts that each number is at most the given fraction of the one before.
#[track_caller]
fn assert_falls(label: &str, lost: &[f64], most: &[f64]) {
    let parts: Vec<f64> = lost.windows(2).map(|pair| pair[1] / pair[0]).collect();
    println!("{label}: {:.3e}, then parts {parts:.3?}", lost[0]);
    assert_eq!(parts.len(), most.len());
    let fall = parts.iter().zip(most).all(|(part, most)| part < most);
    assert!(
        fall,
        "{label}: {lost:?} in parts {parts:?} of at most {most:?}"
    );
}

const PROJECTIONS: [(usize, ProjectionKind); 3] = [
    (1, ProjectionKind::Gate),
    (4, ProjectionKind::Down),
    (6, ProjectionKind::O),
];

#[test]
fn each_encoding_step_reduces_the_loss_of_column_groups() {
    let cache = tempfile::tempdir().unwrap();
    let measured = Measured::new(cache.path());
    let sweeps = Effort::Normal.settings().sweeps;
    for (layer, projection) in PROJECTIONS {
        let of = measured.projection(layer, projection);
        for code in [Code::trellis(3), Code::codebook(3)] {
            let codes = Codes::uniform(code.unwrap(), of.cols).unwrap();
            for codes in [codes.clone(), codes.with_rotation()] {
                let columns = QuantisationGuide {
                    columns: Some(&of.along_columns),
                    ..QuantisationGuide::default()
                };
                let rows = QuantisationGuide {
                    rows: Some(&of.along_rows),
                    ..columns
                };
                let is_trellis = codes.contains_kind(CodeKind::Trellis);
                let swept = if is_trellis {
                    rows
                } else {
                    QuantisationGuide { sweeps, ..rows }
                };
                let lost = [
                    of.column_group_loss(&codes, QuantisationGuide::default(), false),
                    of.column_group_loss(&codes, columns, false),
                    of.column_group_loss(&codes, rows, false),
                    of.column_group_loss(&codes, swept, is_trellis),
                ];
                let last = if is_trellis { 0.995 } else { 0.95 };
                assert_falls(&format!("{}, {codes}", of.name), &lost, &[0.5, 0.85, last]);
            }
        }
    }
}

#[test]
fn each_encoding_step_reduces_the_loss_of_a_gguf_type() {
    let cache = tempfile::tempdir().unwrap();
    let measured = Measured::new(cache.path());
    let dtype = DType::Q4K;
    let sweeps = Effort::Normal.settings().sweeps;
    for (layer, projection) in PROJECTIONS {
        let of = measured.projection(layer, projection);
        let mut bytes = vec![0; dtype.matrix_bytes(of.rows, of.cols).unwrap()];
        let mut plain = vec![0.0; of.values.len()];
        block::encode(dtype, &of.values, &mut bytes).unwrap();
        block::decode(dtype, &bytes, &mut plain).unwrap();
        let rows = Some(&of.along_rows);
        let plain = of.lost(&plain);
        let [fed, swept] = [0, sweeps].map(|sweeps| of.gguf_loss(dtype, None, sweeps));
        let of_rows = [0, sweeps].map(|sweeps| of.gguf_loss(dtype, rows, sweeps));
        let label = format!("{}, {dtype}", of.name);
        assert_falls(&label, &[plain, fed, swept, of_rows[1]], &[0.5, 0.98, 0.8]);
        assert_falls(&label, &[fed, of_rows[0], of_rows[1]], &[0.8, 0.98]);
    }
}
