use htc_formats::bands::{Code, Codes, ColumnGroups, GROUP_COLS};

use super::codes::{loss, normal};
use crate::codes::{QuantisationGuide, RowFeedback, encode_column_groups, gaussian_relative_error};
use crate::{ErrorFeedback, SecondMoment, Weight};

struct Wide {
    cols: usize,
    values: Vec<f32>,
    feedback: ErrorFeedback,
}

const ROWS: usize = 32;

fn count(row: usize) -> f64 {
    if row.is_multiple_of(3) { 6.0 } else { 0.5 }
}

impl Wide {
    fn new(cols: usize) -> Wide {
        let powers: Vec<f64> = (0..cols).map(|k| 0.9f64.powi(k as i32)).collect();
        let row = |i: usize| (0..cols).map(move |j| i.abs_diff(j));
        let all = (0..cols).flat_map(row).map(|k| powers[k]);
        let moment: Vec<f64> = all.collect();
        let moment = SecondMoment {
            order: cols,
            values: &moment,
        };
        Wide {
            cols,
            values: normal(21, ROWS * cols, 0.05),
            feedback: ErrorFeedback::new(moment, 0.01).unwrap(),
        }
    }

    fn lost(&self, codes: &Codes, guide: QuantisationGuide<'_>) -> f64 {
        let (rows, cols, values) = (ROWS, self.cols, &self.values[..]);
        let bytes = encode_column_groups(codes, Weight { rows, cols, values }, guide).unwrap();
        let bands = ColumnGroups::new(codes, rows, &bytes).unwrap();
        let mut stored = vec![0.0; cols];
        let of_row = |(row, values): (usize, &[f32])| {
            bands.decode_row(row, &mut stored).unwrap();
            let errors = values.iter().zip(&stored).map(|(w, v)| f64::from(w - v));
            let (mut before, mut sum) = (0.0, 0.0);
            for e in errors {
                sum += e * (e + 2.0 * 0.9 * before);
                before = e + 0.9 * before;
            }
            count(row) * sum
        };
        values.chunks_exact(cols).enumerate().map(of_row).sum()
    }
}

#[test]
fn feedback_gains_as_much_in_wide_matrices_as_in_narrow_ones() {
    let of = [4100, 100].map(Wide::new);
    let of_rows = RowFeedback::from_weights((0..ROWS).map(|row| count(row) as f32).collect());
    let mixed = |cols: usize| {
        let codes = [Code::trellis(2), Code::codebook(3)].map(Result::unwrap);
        let of_band = |band: usize| codes[band % 2];
        let all = (0..cols.div_ceil(GROUP_COLS)).map(of_band).collect();
        Codes::new(all, cols).unwrap()
    };
    let uniform = |code: Code| move |cols: usize| Codes::uniform(code, cols).unwrap();
    let (trellis, levels) = (Code::trellis(3).unwrap(), Code::codebook(3).unwrap());
    let all: [&dyn Fn(usize) -> Codes; 3] = [&uniform(trellis), &uniform(levels), &mixed];
    for codes in all {
        let [wide, narrow] = of.each_ref().map(|of| {
            let codes = codes(of.cols);
            let columns = QuantisationGuide {
                columns: Some(&of.feedback),
                sweeps: 1,
                ..QuantisationGuide::default()
            };
            let both = QuantisationGuide {
                rows: Some(&of_rows),
                ..columns
            };
            let plain = of.lost(&codes, QuantisationGuide::default());
            [columns, both].map(|guide| of.lost(&codes, guide) / plain)
        });
        println!("{}: {wide:.4?}, narrow {narrow:.4?}", codes(100));
        let parts = [wide, narrow];
        assert!(wide[0] < 0.5 && wide[1] < 1.001 * wide[0], "{parts:?}");
        let gained = wide.iter().zip(narrow).all(|(w, n)| *w < 1.3 * n);
        assert!(gained, "{parts:?}");
    }
}

#[test]
fn widest_matrices_have_the_loss_of_their_codes() {
    let rows = 16;
    for (cols, trellis) in [(65_536, 2), (65_533, 4)] {
        let w = normal(3, rows * cols, 0.05);
        let [trellis, levels] = [Code::trellis(trellis), Code::codebook(3)].map(Result::unwrap);
        let bands = (1..=2048).map(|band| if band % 16 == 0 { trellis } else { levels });
        let bands: Vec<Code> = bands.collect();
        let expected: f64 = bands
            .iter()
            .map(|&code| gaussian_relative_error(code))
            .sum();
        let expected = expected / bands.len() as f64;
        let codes = Codes::new(bands, cols).unwrap();
        for codes in [codes.clone(), codes.with_rotation()] {
            let found = loss(&codes, rows, &w) / expected;
            println!("{cols} columns: {found:.3} of what is expected");
            assert!((found - 1.0).abs() < 0.1, "{cols}: {found}");
        }
    }
}
